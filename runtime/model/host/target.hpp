// Compiles the functions between BEGIN and END for an instruction set: function-level target
// attributes for whole regions, so that no file needs an -m flag. Standard headers go before BEGIN.
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
