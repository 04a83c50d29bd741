#include "runtime/model/cut_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::model {
namespace detail {
namespace {

/// Rows are cut at multiples of this where tiles are large enough: gemms like even shapes
/// and aligned columns.
constexpr std::uint64_t kEvenRows = 64;

/// Fills blocks of at most `capacity` parameters with the matrices of one layer.
class Cutter {
 public:
  Cutter(std::vector<BlockLayout>& blocks, std::uint64_t capacity, const BlockLayout& layer)
      : blocks_(blocks), capacity_(capacity), layer_(layer) {}

  void add(const ParameterTensor& matrix) {
    const std::uint64_t columns = matrix.shape[1];
    for (std::uint64_t row = 0; row < matrix.shape[0];) {
      const std::uint64_t rows = fitting(columns, matrix.shape[0] - row);
      if (rows == 0) {
        finish();
        continue;
      }
      ParameterTensor part = matrix;
      part.first = block_.parameters;
      part.count = ElementCount{rows * columns};
      part.skipped = ElementCount{row * columns};
      block_.parameters += part.count;
      block_.tensors.push_back(std::move(part));
      row += rows;
    }
  }

  void finish() {
    if (block_.tensors.empty()) return;
    block_.name = fmt::format("{}.{}", layer_.name, count_++);
    block_.layer = layer_.layer;
    block_.padded_parameters = ElementCount{round_up(block_.parameters.value(), kLeafParameters)};
    blocks_.push_back(std::exchange(block_, {}));
  }

 private:
  /// Returns the rows that still go into the block: all `left`, or an even number of them; 0: none.
  [[nodiscard]] std::uint64_t fitting(std::uint64_t columns, std::uint64_t left) const {
    const std::uint64_t rows = (capacity_ - block_.parameters.value()) / columns;
    if (rows >= left) return left;
    if (rows >= kEvenRows) return rows / kEvenRows * kEvenRows;
    return block_.tensors.empty() ? rows : 0;
  }

  std::vector<BlockLayout>& blocks_;
  std::uint64_t capacity_;
  const BlockLayout& layer_;
  BlockLayout block_;
  std::uint32_t count_ = 0;
};

BlockLayout all_vectors(const ModelLayout& whole) {
  BlockLayout block;
  block.name = "vectors";
  for (const BlockLayout& layer : whole.blocks) {
    for (ParameterTensor tensor : layer.tensors) {
      if (!tensor.is_vector) continue;
      tensor.first = block.parameters;
      block.parameters += tensor.count;
      block.tensors.push_back(std::move(tensor));
    }
  }
  block.padded_parameters = ElementCount{round_up(block.parameters.value(), kLeafParameters)};
  return block;
}

}  // namespace

ModelLayout cut_layout(const ModelConfig& config, const ModelLayout& whole,
                       std::uint64_t operator_tile) {
  check(
      !config.is_gpt2(), ErrorCode::not_supported,
      fmt::format("operator_tile {}: matrices of a gpt2 model are not cut into tiles; set it to 0",
                  operator_tile));
  const std::uint64_t least = least_operator_tile(config);
  check(operator_tile >= least, ErrorCode::invalid_argument,
        fmt::format("operator_tile {}: a tile holds whole rows, and the longest of this model has "
                    "{} parameters; use at least that",
                    operator_tile, least));
  ModelLayout cut;
  cut.operator_tile = operator_tile;
  cut.blocks.push_back(all_vectors(whole));
  for (const BlockLayout& layer : whole.blocks) {
    Cutter cutter(cut.blocks, operator_tile, layer);
    for (const ParameterTensor& tensor : layer.tensors) {
      if (!tensor.is_vector) cutter.add(tensor);
    }
    cutter.finish();
  }
  return cut;
}

}  // namespace detail

std::uint64_t least_operator_tile(const ModelConfig& config) {
  const std::uint64_t queries = std::uint64_t{config.heads} * config.head_dim;
  return std::max({std::uint64_t{config.width}, std::uint64_t{config.ffn_width}, queries});
}

}  // namespace spillway::model
