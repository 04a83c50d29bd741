#include "runtime/engine/embedded/values/values_source.hpp"

#include <algorithm>

namespace spillway::engine {
ValuesSource::ValuesSource(DType dtype, std::span<const ParameterRange> ranges,
                           std::span<const EmbeddedParameter> parameters)
    : dtype_(dtype) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    parts_.push_back({.range = ranges[i], .values = parameters[i].values});
  }
  std::ranges::stable_sort(parts_, {}, [](const Part& part) { return part.range.block; });
}

void ValuesSource::read(BlockIndex block, ElementCount first, std::span<float> target) const {
  std::ranges::fill(target, 0.0F);
  const std::uint64_t end = first.value() + target.size();
  const std::size_t size = size_of(dtype_);
  const auto of_block = std::ranges::equal_range(parts_, block.value(), {},
                                                 [](const Part& part) { return part.range.block; });
  for (const auto& [range, values] : of_block) {
    const std::uint64_t from = std::max(first.value(), range.first);
    const std::uint64_t to = std::min(end, range.first + range.count);
    if (from >= to) continue;
    widen(dtype_, {values + (from - range.first) * size, (to - from) * size},
          target.subspan(from - first.value(), to - from));
  }
}

}  // namespace spillway::engine
