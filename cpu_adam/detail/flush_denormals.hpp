// FlushDenormals: the floating-point environment of every kernel, for the length of a scope.
#pragma once

#if !defined(__x86_64__)
#error "cpu_adam defines its results by x86 FTZ and DAZ; another processor needs its own guard here"
#endif

#include <immintrin.h>

namespace spillway::cpu_adam::detail {

/// Flush to zero, denormals are zero, round to nearest even, every exception masked; the caller's
/// MXCSR comes back at the end, sticky flags included. Costs about 20 cycles. Compilers do not
/// order arithmetic against MXCSR, so the arithmetic belongs in a function that is not inlined into
/// the scope of the guard.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) {
    _mm_setcsr(kMasked | kFlushToZero | kDenormalsAreZero);
  }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned kMasked = 0x1f80;
  static constexpr unsigned kFlushToZero = 0x8000;
  static constexpr unsigned kDenormalsAreZero = 0x0040;

  unsigned saved_;
};

}  // namespace spillway::cpu_adam::detail
