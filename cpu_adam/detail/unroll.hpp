// Loop unrolling that both compilers understand.
#pragma once

// GCC keeps small arrays of vectors in registers only once the loop over them is gone.
#if defined(__clang__)
#define SPILLWAY_UNROLL _Pragma("unroll")
#define SPILLWAY_UNROLL_BY_4 _Pragma("unroll 4")
#else
#define SPILLWAY_UNROLL _Pragma("GCC unroll 16")
#define SPILLWAY_UNROLL_BY_4 _Pragma("GCC unroll 4")
#endif
