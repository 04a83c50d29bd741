#include "runtime/model/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/base/error.hpp"

namespace spillway::model {
namespace {

// These are far above any model, low enough that no product below overflows 64 bits.
constexpr std::uint64_t kMaxVocabulary = 1U << 27;
constexpr std::uint64_t kMaxContext = 1U << 27;
constexpr std::uint64_t kMaxWidth = 1U << 24;
constexpr std::uint64_t kMaxHeads = 1U << 16;
constexpr std::uint64_t kMaxLayers = 1U << 14;
constexpr std::uint64_t kMaxParameters = 1ULL << 48;

void check_size(std::string_view name, std::uint64_t value, std::uint64_t limit) {
  check(value >= 1 && value <= limit, ErrorCode::invalid_argument,
        fmt::format("{} is {}; it must be from 1 to {}", name, value, limit));
}

void check_number(std::string_view name, double value, bool allowed, std::string_view rule) {
  check(std::isfinite(value) && allowed, ErrorCode::invalid_argument,
        fmt::format("{} is {}; it must be {}", name, value, rule));
}

void check_heads(const ModelConfig& config) {
  check(config.heads % config.kv_heads == 0, ErrorCode::invalid_argument,
        fmt::format("num_attention_heads is {}, which num_key_value_heads {} does not divide",
                    config.heads, config.kv_heads));
  if (config.is_gpt2()) {
    check(std::uint64_t{config.heads} * config.head_dim == config.width,
          ErrorCode::invalid_argument,
          fmt::format("n_embd is {}, which is not n_head {} times a head size of {}", config.width,
                      config.heads, config.head_dim));
    check(config.kv_heads == config.heads, ErrorCode::not_supported,
          fmt::format("gpt2 has as many key-value heads as heads, not {} for {}", config.kv_heads,
                      config.heads));
    return;
  }
  check(config.head_dim % 2 == 0, ErrorCode::invalid_argument,
        fmt::format("head_dim is {}; rotary embeddings need an even one", config.head_dim));
}

void check_rope(const ModelConfig& config) {
  check_number("rope_theta", config.rope_theta, config.rope_theta > 0, "above 0");
  if (config.rope_linear_factor) {
    check_number("rope factor", *config.rope_linear_factor, *config.rope_linear_factor > 0,
                 "above 0");
  }
  check(!(config.rope_linear_factor && config.rope_llama3), ErrorCode::invalid_argument,
        "the rotary embedding cannot be scaled in two ways, linear and llama3, at once");
  if (!config.rope_llama3) return;
  const Llama3RopeScaling& scaling = *config.rope_llama3;
  check_number("rope factor", scaling.factor, scaling.factor > 0, "above 0");
  check_number("low_freq_factor", scaling.low_frequency_factor, scaling.low_frequency_factor > 0,
               "above 0");
  check_number("high_freq_factor", scaling.high_frequency_factor,
               scaling.high_frequency_factor > scaling.low_frequency_factor,
               fmt::format("above low_freq_factor {}", scaling.low_frequency_factor));
  check_number("original_max_position_embeddings", scaling.original_context,
               scaling.original_context >= 1, "at least 1");
}

void check_activation(const ModelConfig& config) {
  check(config.is_gpt2() == (config.activation != Activation::silu), ErrorCode::not_supported,
        config.is_gpt2() ? "gpt2 with a silu activation is not supported; use gelu_new or gelu"
                         : "a gated MLP is supported with the silu activation only");
}

void check_parameter_count(const ModelConfig& config) {
  const std::uint64_t width = config.width;
  const std::uint64_t attention =
      width * config.head_dim * (2 * std::uint64_t{config.heads} + 2 * config.kv_heads);
  const std::uint64_t mlp = width * config.ffn_width * (config.is_gpt2() ? 2 : 3);
  const std::uint64_t embedding =
      width * (2 * std::uint64_t{config.vocab_size} + config.max_context);
  check(attention < kMaxParameters && mlp < kMaxParameters && embedding < kMaxParameters &&
            (attention + mlp) * config.layers + embedding < kMaxParameters,
        ErrorCode::invalid_argument,
        fmt::format("the model has more than 2^48 parameters: {} layers, hidden size {}, MLP {}, "
                    "heads {} of {}, vocabulary {}",
                    config.layers, config.width, config.ffn_width, config.heads, config.head_dim,
                    config.vocab_size));
}

}  // namespace

std::string_view name_of(Family family) {
  switch (family) {
    case Family::gpt2: return "gpt2";
    case Family::llama: return "llama";
    case Family::mistral: return "mistral";
    case Family::qwen2: return "qwen2";
    case Family::qwen3: return "qwen3";
  }
  return "unknown";
}

void validate(const ModelConfig& config) {
  const bool gpt2 = config.is_gpt2();
  check_size("vocab_size", config.vocab_size, kMaxVocabulary);
  check_size(gpt2 ? "n_positions" : "max_position_embeddings", config.max_context, kMaxContext);
  check_size(gpt2 ? "n_layer" : "num_hidden_layers", config.layers, kMaxLayers);
  check_size(gpt2 ? "n_embd" : "hidden_size", config.width, kMaxWidth);
  check_size(gpt2 ? "n_head" : "num_attention_heads", config.heads, kMaxHeads);
  check_size("num_key_value_heads", config.kv_heads, kMaxHeads);
  check_size("head_dim", config.head_dim, gpt2 ? kMaxWidth : kMaxHeads);
  check_size(gpt2 ? "n_inner" : "intermediate_size", config.ffn_width, kMaxWidth);
  check_heads(config);
  check_activation(config);
  if (gpt2) {
    check(
        !config.qkv_bias && !config.attention_output_bias && !config.mlp_bias && !config.qk_norm,
        ErrorCode::invalid_argument,
        "gpt2 has biases everywhere and no norm of q and k; leave the bias and qk_norm fields off");
  } else {
    check_rope(config);
  }
  check_number("norm epsilon", config.norm_eps, config.norm_eps >= 0 && config.norm_eps < 1,
               "from 0 to below 1");
  check_number("initializer_range", config.init_std, config.init_std >= 0, "0 or more");
  check_number("dropout", config.dropout, config.dropout >= 0 && config.dropout <= 1,
               "from 0 to 1");
  check(!config.padding_token || (!gpt2 && *config.padding_token < config.vocab_size),
        ErrorCode::invalid_argument,
        fmt::format("pad_token_id is {}; it must be a token of the {}, and that of gpt2 has no row "
                    "of its own",
                    config.padding_token.value_or(0), config.vocab_size));
  check(!config.sliding_window || *config.sliding_window >= 1, ErrorCode::invalid_argument,
        "sliding_window is 0; it must be at least 1, or null");
  check_parameter_count(config);
}

namespace {

/// A linear rotary embedding divides positions by its factor: so many more are within those that
/// the model has been trained on. A factor below 1 takes none away.
std::uint32_t positions_of(const ModelConfig& config) {
  const double factor = std::max(1.0, config.rope_linear_factor.value_or(1));
  return static_cast<std::uint32_t>(
      std::min(std::floor(config.max_context * factor), static_cast<double>(kMaxContext)));
}

}  // namespace

std::uint32_t longest_context(const ModelConfig& config) {
  const std::uint32_t positions = positions_of(config);
  return std::min(positions, config.sliding_window.value_or(positions));
}

void check_context(const ModelConfig& config, std::uint32_t context) {
  const std::uint32_t positions = positions_of(config);
  check(context >= 1 && context <= positions, ErrorCode::invalid_argument,
        fmt::format("a context of {} tokens is asked of a model whose {} is {}{}; use at most {}",
                    context, config.is_gpt2() ? "n_positions" : "max_position_embeddings",
                    config.max_context,
                    positions > config.max_context
                        ? fmt::format(", with a rotary factor of {}", *config.rope_linear_factor)
                        : std::string(),
                    positions));
  check(
      !config.sliding_window || *config.sliding_window >= context, ErrorCode::not_supported,
      fmt::format("sliding_window is {}, shorter than the context of {} tokens; sliding attention "
                  "is not supported: use a context of at most {}",
                  config.sliding_window.value_or(0), context, config.sliding_window.value_or(0)));
}

}  // namespace spillway::model
