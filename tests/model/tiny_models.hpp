// Tiny models of every family, and data for them, for tests of the whole model.
#pragma once

#include <bit>

#include "tests/model/ops_support.hpp"

namespace spillway::model {

inline ModelConfig tiny_gpt2() {
  ModelConfig config;
  config.family = Family::gpt2;
  config.vocab_size = 61;
  config.max_context = 40;
  config.layers = 2;
  config.width = 24;
  config.heads = config.kv_heads = 3;
  config.head_dim = 8;
  config.ffn_width = 50;
  return config;
}

inline ModelConfig tiny_qwen3() {
  ModelConfig config = tiny_gpt2();
  config.family = Family::qwen3;
  config.activation = Activation::silu;
  config.heads = 4;
  config.kv_heads = 2;
  config.qk_norm = true;
  config.tied_head = false;
  return config;
}

inline ModelConfig tiny_llama() {
  ModelConfig config = tiny_qwen3();
  config.family = Family::llama;
  config.qk_norm = false;
  config.heads = config.kv_heads = 3;
  return config;
}

inline constexpr BatchShape kBatch{.batch = 3, .sequence = 19};
inline constexpr std::size_t kTokens = 57;

struct Data {
  std::vector<std::int32_t> tokens, targets;
  Data(Random& random, std::uint32_t vocabulary) {
    for (std::size_t i = 0; i < kTokens; ++i) {
      tokens.push_back(random.below(vocabulary));
      targets.push_back(random.below(vocabulary));
    }
  }
};

/// A model of random parameters, always the same ones.
inline std::unique_ptr<ModelHarness> make_model(const ModelConfig& config, std::unique_ptr<Ops> ops,
                                                BatchShape batch = kBatch) {
  auto model = std::make_unique<ModelHarness>(config, batch, std::move(ops));
  Random random;
  for (std::uint32_t block = 0; block < model->blocks(); ++block) {
    std::vector<float> values;
    for (const ParameterTensor& tensor : model->layout().blocks[block].tensors) {
      for (std::uint64_t i = 0; i < tensor.count.value(); ++i) {
        values.push_back(random.normal(0.2F) + (tensor.initial == Initial::ones ? 1.0F : 0.0F));
      }
    }
    model->set_parameters(block, values);
  }
  return model;
}

inline std::vector<std::uint32_t> bits(ModelHarness& model) {
  std::vector<std::uint32_t> result;
  const auto append = [&](std::span<float> values) {
    for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  };
  for (std::uint32_t block = 0; block < model.blocks(); ++block) append(model.gradients(block));
  return result;
}

}  // namespace spillway::model
