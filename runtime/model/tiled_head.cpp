#include "runtime/model/tiled_head.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::model {

TiledHead::TiledHead(const ModelConfig& config, BatchShape batch,
                     std::span<const BlockLayout> blocks, const BlockLayout& vectors, Ops& ops)
    : config_(config), batch_(batch), ops_(&ops) {
  norm_ = {.kind = NormKind::rms,
           .tokens = tokens(),
           .heads = 1,
           .width = config.width,
           .eps = static_cast<float>(config.norm_eps)};
  norm_weight_ = require_tensors(vectors, {"norm.weight"});
  for (const BlockLayout& block : blocks) {
    SPILLWAY_ASSERT(block.tensors.size() == 1);
    const ParameterTensor& weight = block.tensors.front();
    tiles_.push_back({.first_row = weight.skipped.value() / config.width,
                      .rows = weight.count.value() / config.width,
                      .full = {},
                      .tail = {}});
    largest_tile_ = std::max(largest_tile_, tiles_.back().rows);
  }
  chunk_ = chunk_tokens(tokens(), largest_tile_, ops);
  const std::uint64_t rest = tokens() % chunk_;
  for (Tile& tile : tiles_) {
    ChunkShape chunk{.rows = chunk_,
                     .columns = tile.rows,
                     .width = config.width,
                     .input_gradient = MatmulOutput::gradient};
    tile.full = plan_chunk(chunk, ops);
    chunk.rows = rest;
    tile.tail = rest > 0 ? plan_chunk(chunk, ops) : tile.full;
    ops_workspace_ = std::max({ops_workspace_, tile.full.workspace, tile.tail.workspace});
  }
  ops_workspace_ = std::max({ops_workspace_, ops.reduction_workspace(tokens(), 2 * config.width),
                             ops.reduction_workspace(tokens(), 2)});
  Carver space(ops.compute());
  carve_space(space);
  workspace_bytes_ = space.used();
  Carver carried(ops.compute());
  carve_carried(carried);
  carried_bytes_ = carried.used();
}

std::uint64_t TiledHead::tokens() const { return std::uint64_t{batch_.batch} * batch_.sequence; }

TiledHead::Space TiledHead::carve_space(Carver& carver) const {
  const bool is_fp32 = ops_->compute() == DType::fp32;
  Space space;
  space.normal = carver.elements(tokens() * config_.width);
  if (!is_fp32) space.normal_gradient = carver.elements(tokens() * config_.width);
  space.statistics = carver.floats(tokens() * 2);
  space.logits = carver.floats(chunk_ * largest_tile_);
  space.logits_gradient =
      is_fp32 ? space.logits.as<std::byte>() : carver.elements(chunk_ * largest_tile_);
  space.ops = carver.bytes(ops_workspace_.value());
  return space;
}

TiledHead::Carried TiledHead::carve_carried(Carver& carver) const {
  return {.scans = carver.bytes(tokens() * sizeof(VocabularyScan)).as<VocabularyScan>(),
          .normal = carver.floats(tokens() * config_.width)};
}

double TiledHead::forward_flops(std::uint32_t tile) const {
  return 2.0 * static_cast<double>(tokens()) * config_.width *
         static_cast<double>(tiles_[tile].rows);
}

void TiledHead::loss(std::uint32_t index, const LossArguments& a) {
  Carver carver(ops_->compute(), a.workspace);
  const Space space = carve_space(carver);
  Carver carried_carver(ops_->compute(), a.carried);
  const Carried carried = carve_carried(carried_carver);
  ops_->norm_forward(norm_, {.input = {a.input, config_.width},
                             .weight = norm_weight_.in(a.shared, ops_->compute()),
                             .bias = {},
                             .out = {space.normal, config_.width},
                             .statistics = space.statistics});
  const Tile& tile = tiles_[index];
  if (!a.boundary_gradient.empty()) {
    differentiate(tile, a, space, carried);
    if (index == 0) backward_norm(a, space, carried);
    return;
  }
  scan(tile, a, space, carried);
  if (index + 1 == tiles_.size()) {
    ops_->sum_losses(a.targets, carried.scans, a.loss_sum, space.ops);
  }
}

template <class Visit>
void TiledHead::for_chunks(const Tile& tile, Visit visit) {
  for (std::uint64_t first = 0; first < tokens(); first += chunk_) {
    const std::uint64_t rows = std::min(chunk_, tokens() - first);
    visit(first, rows, rows == chunk_ ? tile.full : tile.tail);
  }
}

/// The logits of a chunk.
VocabularyTile TiledHead::project(const Tile& tile, const ChunkPlans& plans, const LossArguments& a,
                                  const Space& space, std::uint64_t first, std::uint64_t rows) {
  const std::size_t row_bytes = config_.width * size_of(ops_->compute());
  const TensorRange weight{0, tile.rows * config_.width};
  ops_->matmul(plans.logits, {.a = space.normal.subspan(first * row_bytes, rows * row_bytes),
                              .b = weight.in(a.parameters, ops_->compute()),
                              .bias = {},
                              .residual = {},
                              .out = space.logits.as<std::byte>(),
                              .first = true,
                              .workspace = space.ops});
  return {.rows = rows,
          .columns = tile.rows,
          .first_column = tile.first_row,
          .vocabulary = config_.vocab_size,
          .logits = space.logits,
          .targets = a.targets.subspan(first, rows)};
}

void TiledHead::scan(const Tile& tile, const LossArguments& a, const Space& space,
                     const Carried& carried) {
  for_chunks(tile, [&](std::uint64_t first, std::uint64_t rows, const ChunkPlans& plans) {
    ops_->scan_vocabulary(project(tile, plans, a, space, first, rows),
                          carried.scans.subspan(first, rows));
  });
}

void TiledHead::differentiate(const Tile& tile, const LossArguments& a, const Space& space,
                              const Carried& carried) {
  const std::uint64_t width = config_.width;
  const std::size_t row_bytes = width * size_of(ops_->compute());
  const TensorRange weight{0, tile.rows * width};
  const bool last_tile = tile.first_row + tile.rows == config_.vocab_size;
  for_chunks(tile, [&](std::uint64_t first, std::uint64_t rows, const ChunkPlans& plans) {
    const VocabularyTile logits = project(tile, plans, a, space, first, rows);
    ops_->vocabulary_gradient(logits, carried.scans.subspan(first, rows), a.gradient_scale,
                              space.logits_gradient);
    ops_->matmul(plans.input_gradient,
                 {.a = space.logits_gradient,
                  .b = weight.in(a.parameters, ops_->compute()),
                  .bias = {},
                  .residual = {},
                  .out = carried.normal.subspan(first * width, rows * width).as<std::byte>(),
                  .first = last_tile,
                  .workspace = space.ops});
    ops_->matmul(plans.weight_gradient,
                 {.a = space.logits_gradient,
                  .b = space.normal.subspan(first * row_bytes, rows * row_bytes),
                  .bias = {},
                  .residual = {},
                  .out = weight.in(a.gradients, a.first).values.as<std::byte>(),
                  .first = a.first && first == 0,
                  .workspace = space.ops});
  });
}

void TiledHead::backward_norm(const LossArguments& a, const Space& space, const Carried& carried) {
  ConstTensor out_gradient = carried.normal.as<std::byte>();
  if (ops_->compute() != DType::fp32) {
    ops_->round_sums(carried.normal, space.normal_gradient);
    out_gradient = space.normal_gradient;
  }
  ops_->norm_backward(norm_, {.input = {a.input, config_.width},
                              .weight = norm_weight_.in(a.shared, ops_->compute()),
                              .out_gradient = {out_gradient, config_.width},
                              .statistics = space.statistics,
                              .residual_gradient = {},
                              .input_gradient = {a.boundary_gradient, config_.width},
                              .weight_gradient = norm_weight_.in(a.shared_gradients, a.first),
                              .bias_gradient = {},
                              .workspace = space.ops});
}

}  // namespace spillway::model
