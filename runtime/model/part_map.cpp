#include "runtime/model/part_map.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace spillway::model {
namespace {

/// One side of a rectangle.
struct Rows {
  std::uint64_t first, stride, rows, columns;
};

/// Calls `visit(row, column, count, at)` with the parts of rows that lie in [first, first + count)
/// of a block, in order; `at` is from `first` on.
template <class Visit>
void visit_rows(const Rows& side, std::uint64_t first, std::uint64_t count, const Visit& visit) {
  const std::uint64_t end = first + count;
  std::uint64_t row = first > side.first ? (first - side.first) / side.stride : 0;
  for (; row < side.rows; ++row) {
    const std::uint64_t begin = side.first + row * side.stride;
    if (begin >= end) return;
    const std::uint64_t from = std::max(begin, first);
    const std::uint64_t to = std::min(begin + side.columns, end);
    if (from < to) visit(row, from - begin, to - from, from - first);
  }
}

}  // namespace

PartMap::PartMap(const ModelConfig& config, const TensorPart& part)
    : part_(make_layout(config, part)) {
  const ModelLayout whole = make_layout(config);
  of_part_.resize(part_.blocks.size());
  of_whole_.resize(whole.blocks.size());
  std::map<std::uint32_t, std::pair<std::uint32_t, std::uint64_t>> places;  // by tensor number
  for (std::uint32_t b = 0; b < whole.blocks.size(); ++b) {
    for (const ParameterTensor& tensor : whole.blocks[b].tensors) {
      places[tensor.number] = {b, tensor.first.value()};
    }
  }
  for (std::uint32_t b = 0; b < part_.blocks.size(); ++b) {
    const BlockLayout& block = part_.blocks[b];
    for (const ParameterTensor& tensor : block.tensors) {
      const auto [whole_block, whole_first] = places.at(tensor.number);
      add(b, tensor, part.cuts() && tensor.first >= block.shared_first, whole_block, whole_first);
    }
  }
}

void PartMap::add(std::uint32_t block, const ParameterTensor& tensor, bool shared,
                  std::uint32_t of_whole, std::uint64_t whole_first) {
  const auto put = [&](const Rectangle& rectangle) {
    of_part_[block].push_back(rectangle);
    of_whole_[of_whole].push_back(rectangle);
  };
  Rectangle all{.part_block = block,
                .whole_block = of_whole,
                .part_first = tensor.first.value(),
                .part_stride = tensor.count.value(),
                .whole_first = whole_first + tensor.skipped.value(),
                .whole_stride = tensor.count.value(),
                .rows = 1,
                .columns = tensor.count.value(),
                .shared = shared};
  if (tensor.columns.empty()) return put(all);
  all.rows = tensor.is_vector ? 1 : tensor.shape.front();
  all.whole_stride = tensor.shape.back();
  all.part_stride = tensor.count.value() / all.rows;
  std::uint64_t passed = 0;
  for (const ColumnRange& range : tensor.columns) {
    Rectangle piece = all;
    piece.part_first += passed;
    piece.whole_first += range.first;
    piece.columns = range.count;
    passed += range.count;
    put(piece);
  }
}

void PartMap::visit_whole(BlockIndex block, ElementCount first, ElementCount count,
                          const Visit& visit) const {
  for (const Rectangle& r : of_part_[block.value()]) {
    const Rows side{r.part_first, r.part_stride, r.rows, r.columns};
    visit_rows(side, first.value(), count.value(),
               [&](std::uint64_t row, std::uint64_t column, std::uint64_t run, std::uint64_t at) {
                 visit({.block = BlockIndex{r.whole_block},
                        .first = ElementCount{r.whole_first + row * r.whole_stride + column},
                        .at = at,
                        .count = run});
               });
  }
}

void PartMap::visit_part(BlockIndex block, ElementCount first, ElementCount count,
                         const Visit& visit) const {
  for (const Rectangle& r : of_whole_[block.value()]) {
    if (r.shared && part_.part.index > 0) continue;
    const Rows side{r.whole_first, r.whole_stride, r.rows, r.columns};
    visit_rows(side, first.value(), count.value(),
               [&](std::uint64_t row, std::uint64_t column, std::uint64_t run, std::uint64_t at) {
                 visit({.block = BlockIndex{r.part_block},
                        .first = ElementCount{r.part_first + row * r.part_stride + column},
                        .at = at,
                        .count = run});
               });
  }
}

void PartView::read(BlockIndex block, ElementCount first, std::span<float> target) const {
  std::ranges::fill(target, 0.0F);  // padding
  map_.visit_whole(block, first, ElementCount{target.size()}, [&](const PartRun& run) {
    whole_.read(run.block, run.first, target.subspan(run.at, run.count));
  });
}

}  // namespace spillway::model
