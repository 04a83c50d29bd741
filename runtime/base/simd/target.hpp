// How functions are compiled for an instruction set: those between BEGIN and END have its target
// attribute, so that no file needs an -m flag. Standard headers are included before BEGIN.
#pragma once

#define SPILLWAY_PRAGMA(text) _Pragma(#text)

#ifdef __clang__
#define SPILLWAY_TARGET_BEGIN(features) \
  SPILLWAY_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define SPILLWAY_TARGET_END SPILLWAY_PRAGMA(clang attribute pop)
#else
#define SPILLWAY_TARGET_BEGIN(features) \
  SPILLWAY_PRAGMA(GCC push_options) SPILLWAY_PRAGMA(GCC target(features))
#define SPILLWAY_TARGET_END SPILLWAY_PRAGMA(GCC pop_options)
#endif

// What processor.hpp asks the processor for.
#define SPILLWAY_AVX2 "avx2,fma,f16c"
#define SPILLWAY_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"
