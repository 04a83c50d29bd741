// Sum of squares of landed gradients, in a fixed fp64 tree: the same bits whatever the tiles,
// threads, ranks and instruction set.
//
// The tree inside a leaf: element i adds its square to partial sum i mod 32, in order of i; then
// sums j and j + 16 are added, then j and j + 8, and so on to one. The square of an fp32 number is
// exact in fp64, so it does not matter whether a kernel fuses the multiplication and the addition.
// A last, shorter leaf has the bits that it would have if padded by zeros.
// As in the update, fp32 and bf16 values below the normal range count as zero.
#pragma once

#include <cstddef>
#include <span>

#include "cpu_adam/adam.hpp"
#include "runtime/base/units.hpp"

namespace spillway::cpu_adam {

/// Writes the fp64 sum of squares of each leaf of `kLeafParameters` gradients.
/// gradient: [count] of `dtype`; leaves: [ceil(count / kLeafParameters)]. A non-finite gradient
/// makes its leaf non-finite.
void sum_squares(Isa isa, DType dtype, const void* gradient, std::size_t count,
                 std::span<double> leaves);

/// Sums by the pairwise tree over leaves in order: split at the largest power of two below the
/// count.
[[nodiscard]] double sum_leaves(std::span<const double> leaves);

/// Sets target[i] = (first ? 0 : target[i]) + source[i]: rounds of gradients added in fp32, in
/// order. source: [target.size()] of `dtype`. With `first` the target is not read.
void accumulate(Isa isa, DType dtype, const void* source, std::span<float> target, bool first);

}  // namespace spillway::cpu_adam
