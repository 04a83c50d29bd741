// Sum of squares of landed gradients, in a fixed fp64 tree: the same bits whatever the tiles,
// threads, ranks and instruction set.
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

/// The pairwise tree over leaves in order: split at the largest power of two below the count.
[[nodiscard]] double sum_leaves(std::span<const double> leaves);

/// target[i] = (first ? 0 : target[i]) + source[i]: rounds of gradients added in fp32, in order.
void accumulate(Isa isa, DType dtype, const void* source, std::span<float> target, bool first);

}  // namespace spillway::cpu_adam
