#include "runtime/model/blocks/tensor_range.hpp"

namespace spillway::model::blocks {

std::vector<TensorRange> find_used(const BlockLayout& block,
                                   std::initializer_list<std::string_view> suffixes) {
  std::vector<TensorRange> ranges;
  std::size_t found = 0;
  for (const std::string_view suffix : suffixes) {
    for (const ParameterTensor& tensor : block.tensors) {
      if (!std::string_view(tensor.name).ends_with(suffix)) continue;
      const auto [first, count] = tensor.used_in_block();
      if (ranges.empty() || ranges.back().first + ranges.back().count != first) {
        ranges.push_back({first, 0});
      }
      ranges.back().count += count;
      ++found;
    }
  }
  SPILLWAY_ASSERT(found == 0 || found == suffixes.size());
  return ranges;
}

std::optional<TensorRange> find_tensors(const BlockLayout& block,
                                        std::initializer_list<std::string_view> suffixes) {
  const std::vector<TensorRange> ranges = find_used(block, suffixes);
  if (ranges.empty()) return std::nullopt;
  SPILLWAY_ASSERT(ranges.size() == 1);
  return ranges.front();
}

TensorRange require_tensors(const BlockLayout& block,
                            std::initializer_list<std::string_view> suffixes) {
  const std::optional<TensorRange> range = find_tensors(block, suffixes);
  SPILLWAY_ASSERT(range.has_value());
  return *range;
}

}  // namespace spillway::model::blocks
