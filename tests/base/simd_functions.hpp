// The functions of runtime/base/simd as a test calls them: the same list for every instruction set,
// with nothing but memory between caller and vectors, which no two sets pass in the same way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway::simd::test {

/// One vector each, of 32 bits a lane.
struct Operands {
  const float* a;
  const float* b;
  const float* c;
  float* out;
};

struct LaneFunction {
  const char* name;
  void (*run)(const Operands& operands);
};

/// Moves the first `count` elements between memory and the lanes of a vector.
struct MemoryFunction {
  const char* name;
  std::size_t element;  ///< bytes of one
  bool writes;
  bool counts;  ///< else it moves as many as there are lanes
  void (*run)(std::size_t count, void* memory, float* lanes);
};

struct VectorFunctions {
  const char* name;
  std::size_t width;
  std::span<const LaneFunction> lanes;
  std::span<const MemoryFunction> memory;
  /// The first `count` lanes of x, then those of `rest`.
  void (*first)(std::size_t count, const float* x, const float* rest, float* out);
  float (*sum)(const float* x);
  float (*largest)(const float* x);
  std::uint32_t (*largest_lane)(const float* x);
  /// Adds the squares of the lower and of the upper lanes; `sums` has half as many as a vector.
  void (*add_squares)(const float* x, double* sums);
  /// Takes two vectors apart, into those at even places and those at odd ones.
  void (*part_places)(const float* x, float* even, float* odd);
};

}  // namespace spillway::simd::test
