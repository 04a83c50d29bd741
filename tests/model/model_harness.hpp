// A whole model in plain memory: what the engine does with blocks, in the simplest way. For tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "runtime/model/host/host_ops.hpp"
#include "runtime/model/ops.hpp"
#include "runtime/model/transformer.hpp"
#include "tests/model/test_device.hpp"

namespace spillway::model {

/// Root mean square of the difference over that of `expected`.
inline double distance(std::span<const float> actual, std::span<const float> expected) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = static_cast<double>(expected[i]);
    difference += std::pow(static_cast<double>(actual[i]) - e, 2);
    size += e * e;
  }
  return std::sqrt(difference / size);
}

/// fp32 values as elements of `dtype`, and back. Parameters round as gradients do: tests only.
inline TestMemory encode(std::span<const float> values, DType dtype) {
  TestMemory memory(values.size() * size_of(dtype));
  const std::span<float> floats = memory.as<float>();
  const std::span<std::uint16_t> halves = memory.as<std::uint16_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::fp32) floats[i] = values[i];
    if (dtype == DType::bf16) halves[i] = to_bf16(values[i]);
    if (dtype == DType::fp16) halves[i] = to_fp16(values[i]);
  }
  return memory;
}
inline std::vector<float> decode(const TestMemory& memory, DType dtype) {
  std::vector<float> values(memory.size() / size_of(dtype));
  const std::span<const float> floats = memory.as<float>();
  const std::span<const std::uint16_t> halves = memory.as<std::uint16_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::fp32) values[i] = floats[i];
    if (dtype == DType::bf16) values[i] = from_bf16(halves[i]);
    if (dtype == DType::fp16) values[i] = from_fp16(halves[i]);
  }
  return values;
}

enum class Activations { kept, recomputed };

class ModelHarness {
 public:
  ModelHarness(const ModelConfig& config, BatchShape batch, const host::HostOpsOptions& options)
      : ModelHarness(config, batch, host::make_ops(options)) {}
  ModelHarness(const ModelConfig& config, BatchShape batch, std::unique_ptr<Ops> ops)
      : config_(config),
        batch_(batch),
        compute_(ops->compute()),
        ops_(std::move(ops)),
        transformer_(config, batch, compute_, *ops_),
        constants_(std::span<const float>(transformer_.constants())),
        workspace_(transformer_.workspace_bytes().value()),
        boundary_gradient_(transformer_.boundary_bytes().value()),
        saved_scratch_(blocks() > 2 ? transformer_.saved_bytes(1).value() : 0),
        logits_(std::size_t{batch.batch} * batch.sequence * ops_->logits_stride(config.vocab_size) *
                sizeof(float)),
        packed_logits_(std::size_t{batch.batch} * batch.sequence * config.vocab_size) {
    transformer_.bind_constants(constants_.device().as<const float>());
    const std::size_t tokens = std::size_t{batch.batch} * batch.sequence;
    tokens_ = TestMemory(tokens * sizeof(std::int32_t));
    targets_ = TestMemory(tokens * sizeof(std::int32_t));
    for (std::uint32_t block = 0; block < blocks(); ++block) {
      const std::uint64_t padded = layout().blocks[block].padded_parameters.value();
      parameters_.emplace_back(padded * size_of(compute_));
      gradients_.emplace_back(padded * sizeof(float));
      boundary_.emplace_back(transformer_.boundary_bytes().value());
      saved_.emplace_back(transformer_.saved_bytes(block).value());
    }
    tied_gradients_ = TestMemory(std::size_t{config.vocab_size} * config.width * sizeof(float));
  }

  [[nodiscard]] const ModelLayout& layout() const { return transformer_.layout(); }
  [[nodiscard]] std::uint32_t blocks() const {
    return static_cast<std::uint32_t>(transformer_.layout().blocks.size());
  }
  [[nodiscard]] Transformer& transformer() { return transformer_; }
  void set_parameters(std::uint32_t block, std::span<const float> values) {
    const TestMemory encoded = encode(values, compute_);  // the padding stays as it is: NaN
    std::memcpy(parameters_[block].data(), encoded.data(), encoded.size());
  }
  [[nodiscard]] std::vector<float> parameters(std::uint32_t block) const {
    return decode(parameters_[block], compute_);
  }
  /// fp32 gradients of a block as the last step left them, without the tied head's part.
  [[nodiscard]] std::span<float> gradients(std::uint32_t block) {
    return gradients_[block].as<float>();
  }
  [[nodiscard]] std::span<float> tied_gradients() { return tied_gradients_.as<float>(); }
  [[nodiscard]] const TestMemory& saved(std::uint32_t block) const { return saved_[block]; }
  [[nodiscard]] const TestMemory& boundary(std::uint32_t block) const { return boundary_[block]; }
  [[nodiscard]] const TestMemory& boundary_gradient() const { return boundary_gradient_; }

  void forward(std::span<const std::int32_t> tokens, Activations activations) {
    std::memcpy(tokens_.data(), tokens.data(), tokens_.size());
    for (std::uint32_t block = 0; block + 1 < blocks(); ++block) {
      run_forward(block, activations == Activations::kept ? saved_[block].device() : Tensor{});
    }
  }

  /// Sum of the losses; gradients of `scale` times it, written if `first`, else added.
  double step(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
              float scale, bool first, Activations activations = Activations::kept) {
    forward(tokens, activations);
    const double sum = loss(targets, scale, first, true);
    for (std::uint32_t block = blocks() - 1; block-- > 0;) {
      const bool recompute = activations == Activations::recomputed && block > 0;
      if (recompute) run_forward(block, saved_scratch_.device());
      transformer_.backward(
          {.block = block,
           .parameters = parameters_[block].device(),
           .tokens = tokens_.device().as<const std::int32_t>(),
           .input = block > 0 ? ConstTensor(boundary_[block - 1].device()) : ConstTensor{},
           .saved = recompute ? saved_scratch_.device() : saved_[block].device(),
           .boundary_gradient = boundary_gradient_.device(),
           .gradients = gradients_[block].device().as<float>(),
           .first = first,
           .workspace = workspace_.device()});
    }
    return sum;
  }

  double loss(std::span<const std::int32_t> targets, float scale, bool first, bool gradient) {
    std::memcpy(targets_.data(), targets.data(), targets_.size());
    transformer_.loss({.parameters = parameters_.back().device(),
                       .tied_parameters = tied(),
                       .targets = targets_.device().as<const std::int32_t>(),
                       .input = boundary_[blocks() - 2].device(),
                       .loss_sum = loss_sum_.device().as<double>(),
                       .gradient_scale = scale,
                       .boundary_gradient = gradient ? boundary_gradient_.device() : Tensor{},
                       .gradients = gradients_.back().device().as<float>(),
                       .tied_gradients = tied_gradients_.device().as<float>(),
                       .first = first,
                       .workspace = workspace_.device()});
    return loss_sum_.as<double>()[0];
  }

  /// After a forward pass; rows side by side.
  std::span<const float> logits(bool all_positions) {
    transformer_.logits({.parameters = parameters_.back().device(),
                         .tied_parameters = tied(),
                         .input = boundary_[blocks() - 2].device(),
                         .logits = logits_.device().as<float>(),
                         .all_positions = all_positions,
                         .workspace = workspace_.device()});
    const std::size_t rows =
        all_positions ? std::size_t{batch_.batch} * batch_.sequence : batch_.batch;
    const std::size_t stride = ops_->logits_stride(config_.vocab_size);
    for (std::size_t row = 0; row < rows; ++row) {
      std::ranges::copy(
          logits_.as<float>().subspan(row * stride, config_.vocab_size),
          packed_logits_.begin() + static_cast<std::ptrdiff_t>(row * config_.vocab_size));
    }
    return std::span<const float>(packed_logits_).first(rows * config_.vocab_size);
  }

 private:
  [[nodiscard]] ConstTensor tied() const {
    return config_.tied_head ? ConstTensor(parameters_[0].device()) : ConstTensor{};
  }
  void run_forward(std::uint32_t block, Tensor saved) {
    transformer_.forward(
        {.block = block,
         .parameters = parameters_[block].device(),
         .tokens = tokens_.device().as<const std::int32_t>(),
         .input = block > 0 ? ConstTensor(boundary_[block - 1].device()) : ConstTensor{},
         .output = boundary_[block].device(),
         .saved = saved,
         .workspace = workspace_.device()});
  }

  ModelConfig config_;
  BatchShape batch_;
  DType compute_;
  std::unique_ptr<Ops> ops_;
  Transformer transformer_;
  TestMemory constants_, tokens_, targets_;
  TestMemory loss_sum_{sizeof(double)};
  TestMemory workspace_, boundary_gradient_, saved_scratch_, logits_, tied_gradients_;
  std::vector<float> packed_logits_;
  std::vector<TestMemory> parameters_, gradients_, boundary_, saved_;
};

}  // namespace spillway::model
