#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/error.hpp"
#include "runtime/base/json.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::model {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string_view class_of(Family family) {
  switch (family) {
    case Family::gpt2: return "GPT2LMHeadModel";
    case Family::llama: return "LlamaForCausalLM";
    case Family::mistral: return "MistralForCausalLM";
    case Family::qwen2: return "Qwen2ForCausalLM";
    case Family::qwen3: return "Qwen3ForCausalLM";
  }
  return "";
}

OrderedJson optional_count(const std::optional<std::uint32_t>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

void write_gpt2(const ModelConfig& config, OrderedJson& out) {
  out["n_embd"] = config.width;
  out["n_layer"] = config.layers;
  out["n_head"] = config.heads;
  out["n_positions"] = config.max_context;
  out["n_inner"] = config.ffn_width;
  out["activation_function"] = config.activation == Activation::gelu_erf ? "gelu" : "gelu_new";
  out["layer_norm_epsilon"] = config.norm_eps;
  for (const auto* name : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) out[name] = config.dropout;
}

/// Writes the layout of transformers 4, which transformers 5 reads too.
void write_rope(const ModelConfig& config, OrderedJson& out) {
  out["rope_theta"] = config.rope_theta;
  out["rope_scaling"] = nullptr;
  if (config.rope_linear_factor) {
    out["rope_scaling"] = {{"rope_type", "linear"}, {"factor", *config.rope_linear_factor}};
  }
  if (config.rope_llama3) {
    const Llama3RopeScaling& scaling = *config.rope_llama3;
    out["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", scaling.factor},
        {"low_freq_factor", scaling.low_frequency_factor},
        {"high_freq_factor", scaling.high_frequency_factor},
        {"original_max_position_embeddings", static_cast<std::uint64_t>(scaling.original_context)}};
  }
}

void write_llama_like(const ModelConfig& config, OrderedJson& out) {
  out["hidden_size"] = config.width;
  out["num_hidden_layers"] = config.layers;
  out["num_attention_heads"] = config.heads;
  out["num_key_value_heads"] = config.kv_heads;
  out["head_dim"] = config.head_dim;
  out["intermediate_size"] = config.ffn_width;
  out["max_position_embeddings"] = config.max_context;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = config.norm_eps;
  out["attention_dropout"] = config.dropout;
  out["pad_token_id"] = optional_count(config.padding_token);
  write_rope(config, out);
  if (config.family == Family::llama || config.family == Family::qwen3) {
    out["attention_bias"] = config.qkv_bias;
  }
  if (config.family == Family::llama) out["mlp_bias"] = config.mlp_bias;
  if (config.family == Family::mistral)
    out["sliding_window"] = optional_count(config.sliding_window);
  if (config.family == Family::qwen2 || config.family == Family::qwen3) {
    out["use_sliding_window"] = config.sliding_window.has_value();
    out["sliding_window"] = optional_count(config.sliding_window);
    out["max_window_layers"] = config.sliding_window ? 0 : config.layers;
  }
}

/// Returns every field of `config` under its Hugging Face name.
OrderedJson fields_of(const ModelConfig& config) {
  OrderedJson out;
  out["model_type"] = name_of(config.family);
  out["vocab_size"] = config.vocab_size;
  if (config.is_gpt2()) {
    write_gpt2(config, out);
  } else {
    write_llama_like(config, out);
  }
  out["initializer_range"] = config.init_std;
  out["tie_word_embeddings"] = config.tied_head;
  return out;
}

/// The rotary fields come in two layouts and belong together: replaced as a whole or not at all.
bool same_rope(const ModelConfig& a, const ModelConfig& b) {
  return a.rope_theta == b.rope_theta && a.rope_linear_factor == b.rope_linear_factor &&
         a.rope_llama3 == b.rope_llama3;
}

/// Returns the source's fields with those replaced whose meaning differs in `config`.
OrderedJson replace_changed(const ModelConfig& source, const ModelConfig& config) {
  OrderedJson out = parse_ordered_json(
      config.source_json,
      {.origin = "the model's source config.json", .code = ErrorCode::invalid_argument});
  const OrderedJson before = fields_of(source);
  const OrderedJson after = fields_of(config);
  const bool rope_stays = same_rope(source, config);
  if (!rope_stays) {
    for (const auto* name : {"rope_parameters", "original_max_position_embeddings"})
      out.erase(name);
  }
  for (const auto& [name, value] : after.items()) {
    const bool rope = name == "rope_theta" || name == "rope_scaling";
    if (rope ? !rope_stays : before.at(name) != value) out[name] = value;
  }
  return out;
}

/// Returns the name that torch and config.json use.
std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::fp32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::fp16: return "float16";
  }
  return "";
}

}  // namespace

std::string to_config_json(const ModelConfig& config, DType dtype) {
  validate(config);
  OrderedJson out;
  if (config.source_json.empty()) {
    // No token has a meaning here; transformers' defaults would name some beyond the vocabulary.
    out["architectures"] = {class_of(config.family)};
    out.update(fields_of(config));
    out["bos_token_id"] = nullptr;
    out["eos_token_id"] = nullptr;
  } else {
    const ModelConfig source = parse_model_config(config.source_json, "the model's config.json");
    check(source.family == config.family, ErrorCode::invalid_argument,
          fmt::format("the model is {} and the config.json it came from is {}",
                      name_of(config.family), name_of(source.family)));
    out = replace_changed(source, config);
    out["architectures"] = {class_of(config.family)};
  }
  // transformers 5 writes "dtype" and reads both; version 4 knows "torch_dtype" only.
  if (out.contains("dtype")) out["dtype"] = torch_name(dtype);
  if (out.contains("torch_dtype") || !out.contains("dtype")) out["torch_dtype"] = torch_name(dtype);
  std::string text = out.dump(2) + "\n";

  ModelConfig again = parse_model_config(text, "the config.json about to be written");
  again.source_json = config.source_json;
  check(again == config, ErrorCode::not_supported,
        fmt::format("a {} config.json cannot say what this model is; it would read:\n{}",
                    name_of(config.family), text));
  return text;
}

}  // namespace spillway::model
