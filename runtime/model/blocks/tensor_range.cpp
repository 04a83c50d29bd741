#include "runtime/model/blocks/tensor_range.hpp"

namespace spillway::model::blocks {

std::optional<TensorRange> find_tensors(const BlockLayout& block,
                                        std::initializer_list<std::string_view> suffixes) {
  TensorRange range;
  std::size_t found = 0;
  for (const std::string_view suffix : suffixes) {
    for (const ParameterTensor& tensor : block.tensors) {
      if (!std::string_view(tensor.name).ends_with(suffix)) continue;
      if (found == 0) range.first = tensor.first.value();
      SPILLWAY_ASSERT(tensor.first.value() == range.first + range.count);
      range.count += tensor.count.value();
      ++found;
    }
  }
  if (found == 0) return std::nullopt;
  SPILLWAY_ASSERT(found == suffixes.size());
  return range;
}

TensorRange require_tensors(const BlockLayout& block,
                            std::initializer_list<std::string_view> suffixes) {
  const std::optional<TensorRange> range = find_tensors(block, suffixes);
  SPILLWAY_ASSERT(range.has_value());
  return *range;
}

}  // namespace spillway::model::blocks
