#include "runtime/model/blocks/head.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::model::blocks {

Head::Head(const ModelConfig& config, BatchShape batch, const LayerParts& projection,
           const BlockLayout& vectors, Ops& ops)
    : config_(config),
      batch_(batch),
      ops_(&ops),
      cut_(projection.cut),
      grouped_(projection.part.cuts()),
      part_(projection.part) {
  const bool gpt2 = config.is_gpt2();
  norm_ = {.kind = gpt2 ? NormKind::layer : NormKind::rms,
           .tokens = own_tokens(part_, tokens()),
           .heads = 1,
           .width = config.width,
           .eps = static_cast<float>(config.norm_eps)};
  norm_weight_ = require_tensors(vectors, {gpt2 ? "ln_f.weight" : "norm.weight"});
  if (gpt2) norm_bias_ = require_tensors(vectors, {"ln_f.bias"});
  parts_ = make_parts(projection, ops);
  for (const Part& part : parts_) {
    ops_workspace_ = std::max({ops_workspace_, part.full.workspace, part.tail.workspace});
  }
  if (!cut_ && !grouped_) {
    last_positions_ = ops.plan_gemm(logits_shape({.rows = batch.batch,
                                                  .columns = config.vocab_size,
                                                  .width = config.width,
                                                  .stride = ops.logits_stride(config.vocab_size)}));
    ops_workspace_ = std::max(ops_workspace_, last_positions_.workspace);
  }
  ops_workspace_ = std::max({ops_workspace_, ops.reduction_workspace(tokens(), 2 * config.width),
                             ops.reduction_workspace(cut_ || grouped_ ? tokens() : chunk_, 2)});
  BumpAllocator space(ops.compute());
  allocate_space(space);
  workspace_bytes_ = space.used();
  if (!cut_ && !grouped_) return;
  BumpAllocator carried(ops.compute());
  allocate_carried(carried);
  carried_bytes_ = carried.used();
}

std::vector<Head::Part> Head::make_parts(const LayerParts& projection, Ops& ops) {
  std::vector<Part> parts;
  for (const BlockLayout& block : projection.blocks) {
    const ParameterTensor& weight = block.tensors.front();
    SPILLWAY_ASSERT(weight.shape.front() == config_.vocab_size);
    parts.push_back({.first_row = weight.skipped.value() / config_.width,
                     .rows = weight.count.value() / config_.width,
                     .weight = {weight.first.value(), weight.count.value()},
                     .full = {},
                     .tail = {}});
    largest_part_ = std::max(largest_part_, parts.back().rows);
  }
  chunk_ = chunk_tokens(tokens(), largest_part_, ops);
  const std::uint64_t rest = tokens() % chunk_;
  for (Part& part : parts) {
    ChunkShape chunk{.rows = chunk_,
                     .columns = part.rows,
                     .width = config_.width,
                     .stride = ops.logits_stride(part.rows)};
    if (cut_) chunk.input_gradient = GemmOutput::gradient;
    part.full = plan_chunk(chunk, ops);
    chunk.rows = rest;
    part.tail = rest > 0 ? plan_chunk(chunk, ops) : part.full;
  }
  return parts;
}

std::uint64_t Head::tokens() const { return std::uint64_t{batch_.batch} * batch_.sequence; }

Head::Space Head::allocate_space(BumpAllocator& allocator) const {
  const bool is_fp32 = ops_->compute() == DType::fp32;
  Space space;
  space.normal = allocator.elements(tokens() * config_.width);
  space.hidden = space.normal;
  // fp32 sums over parts need no rounding.
  if (!grouped_ && (!cut_ || !is_fp32))
    space.normal_gradient = allocator.elements(tokens() * config_.width);
  space.statistics = allocator.floats(tokens() * 2);
  const std::uint64_t logits = chunk_ * ops_->logits_stride(largest_part_);
  space.logits = allocator.floats(logits);
  space.logits_gradient = is_fp32 ? space.logits.as<std::byte>() : allocator.elements(logits);
  space.ops = allocator.bytes(ops_workspace_.value());
  return space;
}

Head::Carried Head::allocate_carried(BumpAllocator& allocator) const {
  if (grouped_) return {.scans = {}, .normal = allocator.elements(tokens() * config_.width)};
  return {.scans = allocator.bytes(tokens() * sizeof(VocabularyScan)).as<VocabularyScan>(),
          .normal = allocator.floats(tokens() * config_.width).as<std::byte>()};
}

double Head::forward_flops(std::uint32_t part) const {
  return 2.0 * static_cast<double>(tokens()) * config_.width *
         static_cast<double>(parts_[part].rows);
}

template <class Visit>
void Head::for_chunks(const Part& part, Visit visit) const {
  for (std::uint64_t first = 0; first < tokens(); first += chunk_) {
    const std::uint64_t count = std::min(chunk_, tokens() - first);
    visit(Chunk{first, count, count == chunk_ ? &part.full : &part.tail});
  }
}

template <class View>
View Head::rows_of(View matrix, const Chunk& chunk) const {
  const std::size_t row = matrix.size() / tokens();
  return matrix.subspan(chunk.first * row, chunk.tokens * row);
}

void Head::apply_norm(NormShape shape, ConstTensor vectors, HeadRows<ConstTensor> input, Tensor out,
                      const Space& space) {
  const DType compute = ops_->compute();
  ops_->norm_forward(shape, {.input = input,
                             .weight = norm_weight_.in(vectors, compute),
                             .bias = norm_bias_ ? norm_bias_->in(vectors, compute) : ConstTensor{},
                             .out = {out, config_.width},
                             .statistics = space.statistics});
}

void Head::project(const Part& part, const Chunk& chunk, ConstTensor parameters, const Space& space,
                   offload::DeviceSpan<float> logits) {
  ops_->gemm(chunk.plans->logits, {.a = rows_of(space.hidden, chunk),
                                   .b = part.weight.in(parameters, ops_->compute()),
                                   .bias = {},
                                   .residual = {},
                                   .out = logits.as<std::byte>(),
                                   .first = true,
                                   .workspace = space.ops});
}

void Head::loss(std::uint32_t index, const LossArguments& a) {
  BumpAllocator allocator(ops_->compute(), a.workspace);
  Space space = allocate_space(allocator);
  const Part& part = parts_[index];
  if (part_.sequence) space.hidden = a.normal;
  if (!part_.sequence || a.pass == LossPass::finish) {
    apply_norm(norm_, a.shared, {a.input, config_.width}, space.normal, space);
  }
  if (grouped_) return pass_of_group(part, a, space);
  if (!cut_) return lose_whole(part, a, space);
  BumpAllocator carried_allocator(ops_->compute(), a.carried);
  const Carried carried = allocate_carried(carried_allocator);
  if (a.boundary_gradient.empty()) {
    scan(part, a, space, carried);
    const bool last = index + 1 == parts_.size();
    if (last) ops_->sum_losses(a.targets, carried.scans, a.loss_sum, space.ops);
    return;
  }
  differentiate(part, a, space, carried);
  if (index > 0) return;
  ConstTensor gradient = carried.normal;
  if (ops_->compute() != DType::fp32) {
    ops_->round_sums(carried.normal.as<const float>(), space.normal_gradient);
    gradient = space.normal_gradient;
  }
  backward_norm(a, gradient, space);
}

void Head::lose_whole(const Part& part, const LossArguments& a, const Space& space) {
  const bool wants_gradient = !a.boundary_gradient.empty();
  for_chunks(part, [&](const Chunk& chunk) {
    project(part, chunk, a.parameters, space, space.logits);
    ops_->cross_entropy({.rows = chunk.tokens,
                         .vocabulary = config_.vocab_size,
                         .stride = ops_->logits_stride(config_.vocab_size),
                         .logits = space.logits,
                         .targets = a.targets.subspan(chunk.first, chunk.tokens),
                         .loss_sum = a.loss_sum,
                         .first = chunk.first == 0,
                         .gradient_scale = a.gradient_scale,
                         .logits_gradient = wants_gradient ? space.logits_gradient : Tensor{},
                         .workspace = space.ops});
    if (wants_gradient) {
      backward_chunk(part, chunk, a, rows_of(space.normal_gradient, chunk), space);
    }
  });
  if (wants_gradient) backward_norm(a, space.normal_gradient, space);
}

VocabularyTile Head::tile_of(const Part& part, const Chunk& chunk, Tokens targets,
                             const Space& space) const {
  return {.rows = chunk.tokens,
          .columns = part.rows,
          .first_column = part.first_row,
          .vocabulary = config_.vocab_size,
          .stride = ops_->logits_stride(part.rows),
          .logits = space.logits,
          .targets = targets.subspan(chunk.first, chunk.tokens)};
}

void Head::scan(const Part& part, const LossArguments& a, const Space& space,
                const Carried& carried) {
  for_chunks(part, [&](const Chunk& chunk) {
    project(part, chunk, a.parameters, space, space.logits);
    ops_->scan_vocabulary(tile_of(part, chunk, a.targets, space), rows_of(carried.scans, chunk),
                          /*first=*/grouped_ || part.first_row == 0);
  });
}

void Head::differentiate(const Part& part, const LossArguments& a, const Space& space,
                         const Carried& carried) {
  for_chunks(part, [&](const Chunk& chunk) {
    project(part, chunk, a.parameters, space, space.logits);
    ops_->vocabulary_gradient(tile_of(part, chunk, a.targets, space), rows_of(carried.scans, chunk),
                              a.gradient_scale, space.logits_gradient);
    backward_chunk(part, chunk, a, rows_of(carried.normal, chunk), space);
  });
}

/// In the last pass `carried` has the sum over the ranks.
void Head::pass_of_group(const Part& part, const LossArguments& a, const Space& space) {
  BumpAllocator allocator(ops_->compute(), a.carried);
  const bool makes = a.pass == LossPass::gradient && !a.carried.empty();
  Carried carried = makes ? allocate_carried(allocator) : Carried{};
  carried.scans = a.scans;
  switch (a.pass) {
    case LossPass::scan: return scan(part, a, space, carried);
    case LossPass::gradient:
      ops_->merge_scans(a.gathered, a.scans);
      ops_->sum_losses(a.targets, a.scans, a.loss_sum, space.ops);
      if (makes) differentiate(part, a, space, carried);
      return;
    case LossPass::finish: {
      const std::size_t bytes = norm_.tokens * config_.width * size_of(ops_->compute());
      return backward_norm(a, a.carried.subspan(0, bytes), space);
    }
  }
}

void Head::normalize(const NormalizeArguments& a) {
  BumpAllocator allocator(ops_->compute(), a.workspace);
  const Space space = allocate_space(allocator);
  apply_norm(norm_, a.shared, {a.input, config_.width}, a.output, space);
}

void Head::backward_chunk(const Part& part, const Chunk& chunk, const LossArguments& a,
                          Tensor normal_gradient, const Space& space) {
  // The second pass begins with the last part, which overwrites the sums.
  const bool last_part = part.first_row + part.rows == config_.vocab_size;
  ops_->gemm(chunk.plans->input_gradient, {.a = space.logits_gradient,
                                           .b = part.weight.in(a.parameters, ops_->compute()),
                                           .bias = {},
                                           .residual = {},
                                           .out = normal_gradient,
                                           .first = last_part,
                                           .workspace = space.ops});
  const Gradient weight = part.weight.in(a.gradients, a.first);
  ops_->gemm(chunk.plans->weight_gradient, {.a = space.logits_gradient,
                                            .b = rows_of(space.hidden, chunk),
                                            .bias = {},
                                            .residual = {},
                                            .out = weight.values.as<std::byte>(),
                                            .first = a.first && chunk.first == 0,
                                            .workspace = space.ops});
}

void Head::backward_norm(const LossArguments& a, ConstTensor gradient, const Space& space) {
  ops_->norm_backward(
      norm_,
      {.input = {a.input, config_.width},
       .weight = norm_weight_.in(a.shared, ops_->compute()),
       .out_gradient = {gradient, config_.width},
       .statistics = space.statistics,
       .residual_gradient = {},
       .input_gradient = {a.boundary_gradient, config_.width},
       .weight_gradient = norm_weight_.in(a.shared_gradients, a.first),
       .bias_gradient = norm_bias_ ? norm_bias_->in(a.shared_gradients, a.first) : Gradient{},
       .workspace = space.ops});
}

void Head::logits(const Transformer::LogitsArguments& a, ConstTensor vectors) {
  SPILLWAY_ASSERT(!cut_ && !grouped_);
  BumpAllocator allocator(ops_->compute(), a.workspace);
  const Space space = allocate_space(allocator);
  const Part& part = parts_.front();
  if (a.all_positions) {
    apply_norm(norm_, vectors, {a.input, config_.width}, space.normal, space);
    for_chunks(part, [&](const Chunk& chunk) {
      project(part, chunk, a.parameters, space, rows_of(a.logits, chunk));
    });
    return;
  }
  const std::size_t skipped =
      (batch_.sequence - 1) * std::size_t{config_.width} * size_of(ops_->compute());
  NormShape shape = norm_;
  shape.tokens = batch_.batch;
  apply_norm(shape, vectors,
             {a.input.subspan(skipped, a.input.size() - skipped),
              std::uint64_t{batch_.sequence} * config_.width},
             space.normal, space);
  ops_->gemm(last_positions_, {.a = space.normal,
                               .b = part.weight.in(a.parameters, ops_->compute()),
                               .bias = {},
                               .residual = {},
                               .out = a.logits.as<std::byte>(),
                               .first = true,
                               .workspace = space.ops});
}

}  // namespace spillway::model::blocks
