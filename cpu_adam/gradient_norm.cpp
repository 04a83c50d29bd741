#include "cpu_adam/gradient_norm.hpp"

#include <bit>

#include "cpu_adam/detail/kernel_set.hpp"
#include "runtime/base/error.hpp"

namespace spillway::cpu_adam {

void sum_squares(Isa isa, DType dtype, const void* gradient, std::size_t count,
                 std::span<double> leaves) {
  SPILLWAY_ASSERT(leaves.size() == round_up(count, kLeafParameters) / kLeafParameters);
  detail::kernel_set(isa).sum_squares[detail::index_of(dtype)](gradient, count, leaves.data());
}

double sum_leaves(std::span<const double> leaves) {
  if (leaves.empty()) return 0;
  if (leaves.size() == 1) return leaves[0];
  const std::size_t half = std::bit_floor(leaves.size() - 1);
  return sum_leaves(leaves.first(half)) + sum_leaves(leaves.subspan(half));
}

void accumulate(Isa isa, DType dtype, const void* source, std::span<float> target, bool first) {
  detail::kernel_set(isa).accumulate[detail::index_of(dtype)](source, target.data(), target.size(),
                                                              first);
}

}  // namespace spillway::cpu_adam
