#include "runtime/model/layout_view.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::model {

LayoutView::LayoutView(const ParameterSource& source, const ModelLayout& stored,
                       const ModelLayout& wanted)
    : source_(source), wanted_(wanted) {
  for (std::uint32_t b = 0; b < stored.blocks.size(); ++b) {
    for (const ParameterTensor& tensor : stored.blocks[b].tensors) {
      parts_[tensor.name].push_back({b, &tensor});
    }
  }
}

void LayoutView::read(BlockIndex block, ElementCount first, std::span<float> target) const {
  for (const ParameterTensor& tensor : wanted_.blocks.at(block.value()).tensors) {
    const ElementCount end = tensor.first + tensor.count;
    if (first >= end || target.empty()) continue;
    const auto part = target.first(std::min<std::uint64_t>(target.size(), (end - first).value()));
    read_tensor(tensor.name, tensor.skipped + (first - tensor.first), part);
    target = target.subspan(part.size());
    first += ElementCount{part.size()};
  }
  std::ranges::fill(target, 0.0F);  // padding
}

void LayoutView::read_tensor(const std::string& name, ElementCount first,
                             std::span<float> target) const {
  for (const Part& part : parts_.at(name)) {
    const ParameterTensor& tensor = *part.tensor;
    const ElementCount end = tensor.skipped + tensor.count;
    if (first >= end || target.empty()) continue;
    const auto here = target.first(std::min<std::uint64_t>(target.size(), (end - first).value()));
    source_.read(BlockIndex{part.block}, tensor.first + (first - tensor.skipped), here);
    target = target.subspan(here.size());
    first += ElementCount{here.size()};
  }
  SPILLWAY_ASSERT(target.empty());
}

}  // namespace spillway::model
