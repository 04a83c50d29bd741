// Where a tensor, or several adjacent ones used as one matrix, lies in a block.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>

#include "runtime/model/ops.hpp"
#include "runtime/model/parameter_layout.hpp"

namespace spillway::model::blocks {

struct TensorRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;

  [[nodiscard]] ConstTensor in(ConstTensor block, DType compute) const {
    const std::size_t size = size_of(compute);
    return block.subspan(first * size, count * size);
  }
  [[nodiscard]] Gradient in(offload::DeviceSpan<float> gradients, bool overwrite) const {
    return {gradients.subspan(first, count), overwrite};
  }
};

/// Returns what a rank uses of the tensors of `block` whose names end in `suffixes`, in this order:
/// the fewest ranges possible, none when no tensor is there. Aborts when only some are.
[[nodiscard]] std::vector<TensorRange> find_used(const BlockLayout& block,
                                                 std::initializer_list<std::string_view> suffixes);
/// Returns the same where it must be one range.
[[nodiscard]] std::optional<TensorRange> find_tensors(
    const BlockLayout& block, std::initializer_list<std::string_view> suffixes);
/// Returns the same for tensors that every model of the family has.
[[nodiscard]] TensorRange require_tensors(const BlockLayout& block,
                                          std::initializer_list<std::string_view> suffixes);

}  // namespace spillway::model::blocks
