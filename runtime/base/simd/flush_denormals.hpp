// FlushDenormals: the floating-point environment of the optimizer's kernels, for a scope's length.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif !defined(__aarch64__)
#error \
    "the optimizer defines its results by FTZ and DAZ; another processor needs its own guard here"
#endif

namespace spillway::simd {

/// Sets flush to zero, denormals are zero, round to nearest even, every exception masked; the
/// caller's control word comes back at the end, sticky flags included. Costs about 20 cycles.
/// Compilers do not order arithmetic against it, so the arithmetic belongs in a function that is
/// not inlined into the scope of the guard. ARM decides before rounding whether a result is below
/// the normal range and x86 after: a result that rounds up to the smallest normal number is zero on
/// ARM alone.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(read()) { write(kControl); }
  ~FlushDenormals() { write(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  // Exceptions masked, flush to zero, denormals are zero.
  static constexpr std::uint64_t kControl = 0x1f80 | 0x8000 | 0x0040;
  static std::uint64_t read() { return _mm_getcsr(); }
  static void write(std::uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
#else
  static constexpr std::uint64_t kControl = std::uint64_t{1} << 24;  // FZ: inputs and results
  static std::uint64_t read() {
    std::uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(std::uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#endif

  std::uint64_t saved_;
};

}  // namespace spillway::simd
