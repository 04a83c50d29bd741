#include "runtime/model/head.hpp"

#include <algorithm>

namespace spillway::model {

Head::Head(const ModelConfig& config, BatchShape batch, const BlockLayout& block, Ops& ops)
    : config_(config), batch_(batch), ops_(&ops) {
  const bool gpt2 = config.is_gpt2();
  norm_ = {.kind = gpt2 ? NormKind::layer : NormKind::rms,
           .tokens = tokens(),
           .heads = 1,
           .width = config.width,
           .eps = static_cast<float>(config.norm_eps)};
  norm_weight_ = require_tensors(block, {gpt2 ? "ln_f.weight" : "norm.weight"});
  if (gpt2) norm_bias_ = require_tensors(block, {"ln_f.bias"});
  if (!config.tied_head) projection_ = require_tensors(block, {"lm_head.weight"});
  chunk_ = chunk_tokens(tokens(), config.vocab_size, ops);
  const ChunkShape chunk{.rows = chunk_, .columns = config.vocab_size, .width = config.width};
  full_ = plan_chunk(chunk, ops);
  const std::uint64_t rest = tokens() % chunk_;
  ChunkShape last = chunk;
  last.rows = rest;
  tail_ = rest > 0 ? plan_chunk(last, ops) : full_;
  last_positions_ = ops.plan_matmul({.rows = batch.batch,
                                     .columns = config.vocab_size,
                                     .inner = config.width,
                                     .transpose_b = true,
                                     .output = MatmulOutput::fp32});
  ops_workspace_ = std::max({full_.workspace, tail_.workspace, last_positions_.workspace,
                             ops.reduction_workspace(tokens(), 2 * config.width),
                             ops.reduction_workspace(chunk_, 2)});
  Carver measure(ops.compute());
  carve(measure);
  workspace_bytes_ = measure.used();
}

std::uint64_t Head::tokens() const { return std::uint64_t{batch_.batch} * batch_.sequence; }

Head::Space Head::carve(Carver& carver) const {
  Space space;
  space.normal = carver.elements(tokens() * config_.width);
  space.normal_gradient = carver.elements(tokens() * config_.width);
  space.statistics = carver.floats(tokens() * 2);
  space.logits = carver.floats(chunk_ * config_.vocab_size);
  space.logits_gradient = ops_->compute() == DType::fp32
                              ? space.logits.as<std::byte>()
                              : carver.elements(chunk_ * config_.vocab_size);
  space.ops = carver.bytes(ops_workspace_.value());
  return space;
}

double Head::forward_flops() const {
  return 2.0 * static_cast<double>(tokens()) * config_.width * config_.vocab_size;
}

void Head::apply_norm(NormShape shape, ConstTensor parameters, HeadRows<ConstTensor> input,
                      const Space& space) {
  const DType compute = ops_->compute();
  ops_->norm_forward(shape,
                     {.input = input,
                      .weight = norm_weight_.in(parameters, compute),
                      .bias = norm_bias_ ? norm_bias_->in(parameters, compute) : ConstTensor{},
                      .out = {space.normal, config_.width},
                      .statistics = space.statistics});
}

ConstTensor Head::weight(ConstTensor parameters, ConstTensor tied) const {
  const std::uint64_t count = std::uint64_t{config_.vocab_size} * config_.width;
  return projection_ ? projection_->in(parameters, ops_->compute())
                     : TensorRange{0, count}.in(tied, ops_->compute());
}

void Head::loss(const LossArguments& a) {
  Carver carver(ops_->compute(), a.workspace);
  const Space space = carve(carver);
  const bool wants_gradient = !a.boundary_gradient.empty();
  const ConstTensor projection = weight(a.parameters, a.tied_parameters);
  const std::size_t row_bytes = config_.width * size_of(ops_->compute());
  apply_norm(norm_, a.parameters, {a.input, config_.width}, space);
  for (std::uint64_t first = 0; first < tokens(); first += chunk_) {
    const std::uint64_t rows = std::min(chunk_, tokens() - first);
    const ChunkPlans& plans = rows == chunk_ ? full_ : tail_;
    ops_->matmul(plans.logits, {.a = space.normal.subspan(first * row_bytes, rows * row_bytes),
                                .b = projection,
                                .bias = {},
                                .residual = {},
                                .out = space.logits.as<std::byte>(),
                                .first = true,
                                .workspace = space.ops});
    ops_->cross_entropy({.rows = rows,
                         .vocabulary = config_.vocab_size,
                         .logits = space.logits,
                         .targets = a.targets.subspan(first, rows),
                         .loss_sum = a.loss_sum,
                         .first = first == 0,
                         .gradient_scale = a.gradient_scale,
                         .logits_gradient = wants_gradient ? space.logits_gradient : Tensor{},
                         .workspace = space.ops});
    if (wants_gradient) backward_chunk(a, space, first, rows);
  }
  if (wants_gradient) backward_norm(a, space);
}

void Head::backward_chunk(const LossArguments& a, const Space& space, std::uint64_t first,
                          std::uint64_t rows) {
  const ChunkPlans& plans = rows == chunk_ ? full_ : tail_;
  const std::size_t row_bytes = config_.width * size_of(ops_->compute());
  const std::uint64_t count = std::uint64_t{config_.vocab_size} * config_.width;
  const Gradient gradient = projection_ ? projection_->in(a.gradients, a.first)
                                        : Gradient{a.tied_gradients.subspan(0, count), a.first};
  ops_->matmul(plans.input_gradient,
               {.a = space.logits_gradient,
                .b = weight(a.parameters, a.tied_parameters),
                .bias = {},
                .residual = {},
                .out = space.normal_gradient.subspan(first * row_bytes, rows * row_bytes),
                .first = true,
                .workspace = space.ops});
  ops_->matmul(plans.weight_gradient,
               {.a = space.logits_gradient,
                .b = space.normal.subspan(first * row_bytes, rows * row_bytes),
                .bias = {},
                .residual = {},
                .out = gradient.values.as<std::byte>(),
                .first = a.first && first == 0,
                .workspace = space.ops});
}

void Head::backward_norm(const LossArguments& a, const Space& space) {
  const ConstTensor out_gradient = space.normal_gradient;
  ops_->norm_backward(
      norm_, {.input = {a.input, config_.width},
              .weight = norm_weight_.in(a.parameters, ops_->compute()),
              .out_gradient = {out_gradient, config_.width},
              .statistics = space.statistics,
              .residual_gradient = {},
              .input_gradient = {a.boundary_gradient, config_.width},
              .weight_gradient = norm_weight_.in(a.gradients, a.first),
              .bias_gradient = norm_bias_ ? norm_bias_->in(a.gradients, a.first) : Gradient{},
              .workspace = space.ops});
}

void Head::logits(const Transformer::LogitsArguments& a) {
  Carver carver(ops_->compute(), a.workspace);
  const Space space = carve(carver);
  const ConstTensor projection = weight(a.parameters, a.tied_parameters);
  const std::size_t row_bytes = config_.width * size_of(ops_->compute());
  const std::uint64_t vocabulary = config_.vocab_size;
  const auto project = [&](MatmulPlan plan, ConstTensor rows, offload::DeviceSpan<float> out) {
    ops_->matmul(plan, {.a = rows,
                        .b = projection,
                        .bias = {},
                        .residual = {},
                        .out = out.as<std::byte>(),
                        .first = true,
                        .workspace = space.ops});
  };
  if (!a.all_positions) {
    const std::size_t skipped = (batch_.sequence - 1) * row_bytes;
    NormShape shape = norm_;
    shape.tokens = batch_.batch;
    apply_norm(shape, a.parameters,
               {a.input.subspan(skipped, a.input.size() - skipped),
                std::uint64_t{batch_.sequence} * config_.width},
               space);
    project(last_positions_, space.normal, a.logits);
    return;
  }
  apply_norm(norm_, a.parameters, {a.input, config_.width}, space);
  for (std::uint64_t first = 0; first < tokens(); first += chunk_) {
    const std::uint64_t rows = std::min(chunk_, tokens() - first);
    project(rows == chunk_ ? full_.logits : tail_.logits,
            space.normal.subspan(first * row_bytes, rows * row_bytes),
            a.logits.subspan(first * vocabulary, rows * vocabulary));
  }
}

}  // namespace spillway::model
