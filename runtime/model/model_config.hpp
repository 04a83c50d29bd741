// The architecture of a decoder-only transformer, one struct for all families.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/dtype.hpp"

namespace spillway::model {

enum class Family : std::uint8_t { gpt2, llama, mistral, qwen2, qwen3 };
enum class Activation : std::uint8_t { gelu_tanh, gelu_erf, silu };

/// Describes Llama-3 frequency scaling (config.json `rope_type: llama3`).
struct Llama3RopeScaling {
  double factor = 1;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  double original_context = 8192;

  bool operator==(const Llama3RopeScaling&) const = default;
};

struct ModelConfig {
  Family family = Family::gpt2;
  std::uint32_t vocab_size = 0;
  std::uint32_t max_context = 0;  ///< n_positions / max_position_embeddings
  std::uint32_t layers = 0;
  std::uint32_t width = 0;  ///< hidden size
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;  ///< grouped-query attention when below `heads`
  std::uint32_t head_dim = 0;
  std::uint32_t ffn_width = 0;
  Activation activation = Activation::gelu_tanh;  ///< silu: gated (SwiGLU)
  double norm_eps = 1e-5;
  bool tied_head = true;
  bool qkv_bias = false;  ///< qwen2; gpt2 always has biases everywhere
  bool attention_output_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  ///< qwen3: RMSNorm over head_dim of q and k before RoPE
  double rope_theta = 10000;
  std::optional<double> rope_linear_factor = std::nullopt;
  std::optional<Llama3RopeScaling> rope_llama3 = std::nullopt;
  double init_std = 0.02;
  /// The token whose row of the embedding starts at zero and gets no gradient from the input,
  /// though it gets one from a tied head. transformers gives no row of GPT-2 a meaning of this
  /// kind.
  std::optional<std::uint32_t> padding_token = std::nullopt;
  /// The window of any layer counts. Attention is full, so windows of tokens must not be longer:
  /// `check_context`.
  std::optional<std::uint32_t> sliding_window = std::nullopt;
  double dropout = 0;            ///< as found in config.json; trained as 0, noted in one line
  std::string source_json = {};  ///< the config.json this came from, for a faithful export

  /// Whether this is gpt2, with LayerNorm, learned positions and GELU. The other families by
  /// default have RMSNorm, RoPE, a gated MLP and no biases.
  [[nodiscard]] bool is_gpt2() const { return family == Family::gpt2; }
  bool operator==(const ModelConfig&) const = default;
};

/// Returns "gpt2", "llama", ...: the `model_type` of config.json.
std::string_view name_of(Family family);

/// Throws `Error{invalid_argument}` naming the field and its value if a size is zero or too large,
/// heads do not divide, or the family cannot have what is asked. Parsing and `make_layout` call it.
void validate(const ModelConfig& config);

/// Returns the most tokens that a window may have: `max_context`, times the factor of a linear
/// rotary embedding, or `sliding_window` if that is less.
[[nodiscard]] std::uint32_t longest_context(const ModelConfig& config);
/// Throws `Error` naming the field if windows of `context` tokens cannot be computed as the model
/// means them: longer than `longest_context`. `Transformer` calls it.
void check_context(const ModelConfig& config, std::uint32_t context);

/// Parses the text of an HF config.json (layouts of transformers 4 and 5). Every field that changes
/// the mathematics is read or refused by name with `Error{invalid_argument | not_supported}`.
[[nodiscard]] ModelConfig parse_model_config(std::string_view json_text, std::string_view origin);
[[nodiscard]] ModelConfig load_model_config(const std::filesystem::path& config_json);
/// Returns a config.json that transformers loads: the source's fields, changed ones replaced.
/// `dtype` is that of the weights beside it.
[[nodiscard]] std::string to_config_json(const ModelConfig& config, DType dtype);

}  // namespace spillway::model
