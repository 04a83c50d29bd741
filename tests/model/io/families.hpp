// One small model a family, and variants of them, for the tests of this folder.
#pragma once

#include <string>
#include <vector>

#include "runtime/model/model_config.hpp"

namespace spillway::model::testing {

inline ModelConfig small_gpt2() {
  return {.family = Family::gpt2,
          .vocab_size = 61,
          .max_context = 24,
          .layers = 2,
          .width = 32,
          .heads = 4,
          .kv_heads = 4,
          .head_dim = 8,
          .ffn_width = 128,
          .activation = Activation::gelu_tanh,
          .norm_eps = 1e-5,
          .tied_head = true};
}

inline ModelConfig small_llama(Family family) {
  ModelConfig config{.family = family,
                     .vocab_size = 61,
                     .max_context = 24,
                     .layers = 2,
                     .width = 32,
                     .heads = 4,
                     .kv_heads = 2,
                     .head_dim = 8,
                     .ffn_width = 48,
                     .activation = Activation::silu,
                     .norm_eps = 1e-6,
                     .tied_head = false};
  if (family == Family::qwen2) config.qkv_bias = true;
  if (family == Family::qwen3) {
    config.qk_norm = true;
    config.head_dim = 16;
    config.tied_head = true;
  }
  return config;
}

struct NamedConfig {
  std::string name;
  ModelConfig config;
};

inline std::vector<NamedConfig> all_families() {
  ModelConfig biased = small_llama(Family::llama);
  biased.qkv_bias = biased.attention_output_bias = biased.mlp_bias = true;
  biased.rope_llama3 = Llama3RopeScaling{.factor = 8, .original_context = 12};
  ModelConfig untied = small_gpt2();
  untied.tied_head = false;
  untied.activation = Activation::gelu_erf;
  untied.ffn_width = 40;
  return {{"gpt2", small_gpt2()},
          {"gpt2_untied", untied},
          {"llama", small_llama(Family::llama)},
          {"llama_biased", biased},
          {"mistral", small_llama(Family::mistral)},
          {"qwen2", small_llama(Family::qwen2)},
          {"qwen3", small_llama(Family::qwen3)}};
}

}  // namespace spillway::model::testing
