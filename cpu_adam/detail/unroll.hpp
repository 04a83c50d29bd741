// Loop unrolling that both compilers understand; none in sanitized builds, which would take minutes
// to compile it.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SPILLWAY_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SPILLWAY_SANITIZED 1
#endif
#endif

// GCC keeps small arrays of vectors in registers only once the loop over them is gone.
#if defined(SPILLWAY_SANITIZED)
#define SPILLWAY_UNROLL
#define SPILLWAY_UNROLL_BY_2
#elif defined(__clang__)
#define SPILLWAY_UNROLL _Pragma("unroll")
#define SPILLWAY_UNROLL_BY_2 _Pragma("unroll 2")
#else
#define SPILLWAY_UNROLL _Pragma("GCC unroll 16")
#define SPILLWAY_UNROLL_BY_2 _Pragma("GCC unroll 2")
#endif
