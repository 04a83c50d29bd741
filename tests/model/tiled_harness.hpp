// A model in tiles in plain memory: what the engine does with its blocks, in the simplest way, with
// the parameters of a model without tiles. For tests.
#pragma once

#include <map>
#include <string>

#include "tests/model/model_harness.hpp"

namespace spillway::model {

class TiledHarness {
 public:
  TiledHarness(const ModelConfig& config, BatchShape batch, std::unique_ptr<Ops> ops,
               std::uint64_t operator_tile)
      : compute_(ops->compute()),
        ops_(std::move(ops)),
        transformer_(config, batch, compute_, *ops_, operator_tile),
        constants_(std::span<const float>(transformer_.constants())),
        workspace_(transformer_.workspace_bytes().value()),
        boundary_gradient_(transformer_.boundary_bytes().value()),
        carried_(transformer_.carried_bytes().value()),
        loss_(layout().loss_blocks(config)),
        tied_(config.tied_head),
        boundary_(config.layers + 1),
        saved_(config.layers + 1) {
    transformer_.bind_constants(constants_.device().as<const float>());
    const std::size_t tokens = std::size_t{batch.batch} * batch.sequence;
    tokens_ = TestMemory(tokens * sizeof(std::int32_t));
    targets_ = TestMemory(tokens * sizeof(std::int32_t));
    for (const BlockLayout& block : layout().blocks) {
      parameters_.emplace_back(block.padded_parameters.value() * size_of(compute_));
      gradients_.emplace_back(block.padded_parameters.value() * sizeof(float));
      tied_gradients_.emplace_back(block.parameters.value() * sizeof(float));
    }
    for (auto& boundary : boundary_) boundary = TestMemory(transformer_.boundary_bytes().value());
    for (std::uint32_t b = 1; b < blocks(); ++b) {
      const Bytes bytes = transformer_.saved_bytes(b);
      if (bytes > Bytes{}) saved_[layer_of(b)] = TestMemory(bytes.value());
    }
  }

  [[nodiscard]] const ModelLayout& layout() const { return transformer_.layout(); }
  [[nodiscard]] const Transformer& transformer() const { return transformer_; }

  /// The parameters of `whole`, tensor by tensor.
  void copy_parameters(const ModelHarness& whole) {
    std::map<std::string, std::vector<float>> tensors;
    for (std::uint32_t b = 0; b < whole.blocks(); ++b) {
      const std::vector<float> values = whole.parameters(b);
      for (const ParameterTensor& tensor : whole.layout().blocks[b].tensors) {
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(tensor.first.value());
        tensors[tensor.name].assign(first,
                                    first + static_cast<std::ptrdiff_t>(tensor.count.value()));
      }
    }
    for (std::uint32_t b = 0; b < blocks(); ++b) {
      std::vector<float> values;
      for (const ParameterTensor& tensor : layout().blocks[b].tensors) {
        const auto first =
            tensors.at(tensor.name).begin() + static_cast<std::ptrdiff_t>(tensor.skipped.value());
        values.insert(values.end(), first,
                      first + static_cast<std::ptrdiff_t>(tensor.count.value()));
      }
      const TestMemory encoded = encode(values, compute_);
      std::memcpy(parameters_[b].data(), encoded.data(), encoded.size());
    }
  }

  /// As ModelHarness::step.
  double step(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
              float scale, bool first, Activations activations = Activations::kept) {
    std::memcpy(tokens_.data(), tokens.data(), tokens_.size());
    std::memcpy(targets_.data(), targets.data(), targets_.size());
    for (std::uint32_t b = 1; b < begin_of(head()); ++b) run_forward(b, false);
    for (std::uint32_t b = loss_.first; b < loss_.end; ++b) run_loss(b, {}, true);
    const LossScale loss{scale, boundary_gradient_.device()};
    for (std::uint32_t b = loss_.end; b-- > loss_.first;) run_loss(b, loss, first);
    for (std::uint32_t layer = head(); layer-- > 0;) {
      if (activations == Activations::recomputed && layer > 0) {
        std::memset(saved_[layer].data(), 0xff, saved_[layer].size());
        for (std::uint32_t b = begin_of(layer); b < begin_of(layer + 1); ++b) {
          if (transformer_.feeds_backward(b)) run_forward(b, true);
        }
      }
      for (std::uint32_t b = begin_of(layer + 1); b-- > begin_of(layer);) {
        run_backward(b, first);
      }
    }
    return loss_sum_.as<double>()[0];
  }

  /// fp32 gradients of whole tensors, by name; then the padding of all blocks.
  [[nodiscard]] std::map<std::string, std::vector<float>> gradients() const {
    std::map<std::string, std::vector<float>> tensors;
    for (std::uint32_t b = 0; b < blocks(); ++b) {
      const std::span<const float> values = gradients_[b].as<float>();
      const BlockLayout& block = layout().blocks[b];
      for (const ParameterTensor& tensor : block.tensors) {
        const auto part = values.subspan(tensor.first.value(), tensor.count.value());
        auto& whole = tensors[tensor.name];
        whole.insert(whole.end(), part.begin(), part.end());
      }
      const auto padding = values.subspan(block.parameters.value());
      auto& all = tensors["padding"];
      all.insert(all.end(), padding.begin(), padding.end());
    }
    return tensors;
  }
  /// Of a tied head: the fp32 gradients of the second use of the embedding's rows.
  [[nodiscard]] std::vector<float> tied_gradients() const {
    std::vector<float> rows;
    for (std::uint32_t b = loss_.first; b < loss_.end; ++b) {
      const std::span<const float> part = tied_gradients_[b].as<float>();
      rows.insert(rows.end(), part.begin(), part.end());
    }
    return rows;
  }

 private:
  struct LossScale {
    float scale = 0;
    Tensor boundary_gradient;
  };

  [[nodiscard]] std::uint32_t blocks() const {
    return static_cast<std::uint32_t>(layout().blocks.size());
  }
  [[nodiscard]] std::uint32_t layer_of(std::uint32_t block) const {
    return layout().blocks[block].layer;
  }
  [[nodiscard]] std::uint32_t head() const { return static_cast<std::uint32_t>(boundary_.size()); }
  [[nodiscard]] std::uint32_t begin_of(std::uint32_t layer) const {
    std::uint32_t b = 1;
    while (b < blocks() && layer_of(b) < layer) ++b;
    return b;
  }
  [[nodiscard]] ConstTensor input_of(std::uint32_t block) const {
    const std::uint32_t layer = layer_of(block);
    return layer > 0 ? ConstTensor(boundary_[layer - 1].device()) : ConstTensor{};
  }

  void run_forward(std::uint32_t block, bool again) {
    transformer_.forward({.block = block,
                          .parameters = parameters_[block].device(),
                          .shared = parameters_[0].device(),
                          .tokens = tokens_.device().as<const std::int32_t>(),
                          .input = input_of(block),
                          .output = again ? Tensor{} : boundary_[layer_of(block)].device(),
                          .saved = saved_[layer_of(block)].device(),
                          .workspace = workspace_.device()});
  }
  void run_backward(std::uint32_t block, bool first) {
    transformer_.backward({.block = block,
                           .parameters = parameters_[block].device(),
                           .shared = parameters_[0].device(),
                           .tokens = tokens_.device().as<const std::int32_t>(),
                           .input = input_of(block),
                           .saved = saved_[layer_of(block)].device(),
                           .carried = carried_.device(),
                           .boundary_gradient = boundary_gradient_.device(),
                           .gradients = gradients_[block].device().as<float>(),
                           .shared_gradients = gradients_[0].device().as<float>(),
                           .first = first,
                           .workspace = workspace_.device()});
  }
  void run_loss(std::uint32_t block, const LossScale& loss, bool first) {
    transformer_.loss(
        {.block = block,
         .parameters = parameters_[block].device(),
         .shared = parameters_[0].device(),
         .tied_parameters = tied_ ? parameters_[block].device() : Tensor{},
         .targets = targets_.device().as<const std::int32_t>(),
         .input = boundary_.back().device(),
         .loss_sum = loss_sum_.device().as<double>(),
         .gradient_scale = loss.scale,
         .boundary_gradient = loss.boundary_gradient,
         .carried = carried_.device(),
         .gradients = tied_ ? offload::DeviceSpan<float>{} : gradients_[block].device().as<float>(),
         .shared_gradients = gradients_[0].device().as<float>(),
         .tied_gradients = tied_gradients_[block].device().as<float>(),
         .first = first,
         .workspace = workspace_.device()});
  }

  DType compute_;
  std::unique_ptr<Ops> ops_;
  Transformer transformer_;
  TestMemory constants_, tokens_, targets_;
  TestMemory loss_sum_{sizeof(double)};
  TestMemory workspace_, boundary_gradient_, carried_;
  BlockRange loss_;
  bool tied_;
  std::vector<TestMemory> boundary_, saved_;  ///< by layer
  std::vector<TestMemory> parameters_, gradients_, tied_gradients_;
};

}  // namespace spillway::model
