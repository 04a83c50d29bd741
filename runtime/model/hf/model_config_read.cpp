#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/model/hf/config_fields.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::model {
namespace {

using detail::FieldReader;
using OrderedJson = nlohmann::ordered_json;

Family read_family(FieldReader& fields, std::string_view origin) {
  const auto type = fields.text("model_type");
  check(type.has_value(), ErrorCode::invalid_argument,
        fmt::format("{}: \"model_type\" is missing; it names the architecture", origin));
  for (const Family family :
       {Family::gpt2, Family::llama, Family::mistral, Family::qwen2, Family::qwen3}) {
    if (*type == name_of(family)) return family;
  }
  fields.refuse("model_type", *type, "gpt2, llama, mistral, qwen2 and qwen3 are");
}

/// Returns the class names under which transformers saves the family's causal model and its body.
std::array<std::string_view, 2> classes_of(Family family) {
  switch (family) {
    case Family::gpt2: return {"GPT2LMHeadModel", "GPT2Model"};
    case Family::llama: return {"LlamaForCausalLM", "LlamaModel"};
    case Family::mistral: return {"MistralForCausalLM", "MistralModel"};
    case Family::qwen2: return {"Qwen2ForCausalLM", "Qwen2Model"};
    case Family::qwen3: return {"Qwen3ForCausalLM", "Qwen3Model"};
  }
  return {};
}

void check_architectures(FieldReader& fields, Family family) {
  const OrderedJson* names = fields.any("architectures");
  if (names == nullptr) return;
  if (!names->is_array()) fields.reject("architectures", *names, "a list of class names");
  const auto known = classes_of(family);
  for (const OrderedJson& name : *names) {
    if (name.is_string() && std::ranges::find(known, name.get<std::string>()) != known.end()) {
      continue;
    }
    fields.refuse("architectures", *names,
                  fmt::format("a {} model is {}", name_of(family), known[0]));
  }
}

/// GPT-2's fields have a second name each; a file that gives both must agree with itself.
std::uint32_t gpt2_count(FieldReader& fields, std::string_view name, std::string_view alias) {
  const auto other = fields.count(alias);
  const auto value = fields.count(name);
  if (other && value && *other != *value) {
    fields.reject(alias, *other, fmt::format("equal to \"{}\", which is {}", name, *value));
  }
  if (other) return *other;
  return value ? *value : fields.required_count(name);
}

/// Returns the largest of these fields; `absent` is what transformers takes where one is.
double read_dropout(FieldReader& fields, std::initializer_list<std::string_view> names,
                    double absent) {
  double largest = 0;
  for (const std::string_view name : names) {
    const double value = fields.number(name).value_or(absent);
    if (value < 0 || value > 1) fields.reject(name, value, "from 0 to 1");
    largest = std::max(largest, value);
  }
  return largest;
}

Activation read_gelu(FieldReader& fields) {
  const std::string name = fields.text("activation_function").value_or("gelu_new");
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu_erf;
  fields.refuse("activation_function", name, "gelu_new, gelu_pytorch_tanh and gelu are");
}

void read_gpt2(FieldReader& fields, ModelConfig& config) {
  config.layers = gpt2_count(fields, "n_layer", "num_hidden_layers");
  config.width = gpt2_count(fields, "n_embd", "hidden_size");
  config.heads = gpt2_count(fields, "n_head", "num_attention_heads");
  config.max_context = gpt2_count(fields, "n_positions", "max_position_embeddings");
  if (config.width % config.heads != 0) {
    fields.reject("n_embd", config.width, fmt::format("a multiple of n_head, {}", config.heads));
  }
  config.kv_heads = config.heads;
  config.head_dim = config.width / config.heads;
  const auto inner = fields.count("n_inner");
  if (!inner && config.width > 0x1fffffffU) {
    fields.reject("n_embd", config.width, "below 2^29");
  }
  config.ffn_width = inner.value_or(config.width * 4);
  config.activation = read_gelu(fields);
  config.norm_eps = fields.number("layer_norm_epsilon").value_or(1e-5);
  config.tied_head = fields.boolean("tie_word_embeddings", /*absent=*/true);
  config.dropout = read_dropout(fields, {"resid_pdrop", "embd_pdrop", "attn_pdrop"}, 0.1);
  fields.only("scale_attn_weights", true, "attention scores are divided by sqrt(head size)");
  fields.only("scale_attn_by_inverse_layer_idx", false, "the same scale is used in every layer");
  fields.only("reorder_and_upcast_attn", false,
              "set it to false: scores are accumulated in fp32 anyway");
  fields.only("add_cross_attention", false, "decoder-only models are");
}

/// Reads one rotary description, `rope_parameters` or `rope_scaling`.
void read_rope_object(FieldReader& rope, ModelConfig& config,
                      std::optional<std::uint32_t> outer_original_context) {
  const auto old_name = rope.text("type");
  const auto new_name = rope.text("rope_type");
  if (old_name && new_name && *old_name != *new_name) {
    rope.reject("type", *old_name, fmt::format("equal to \"rope_type\", which is {}", *new_name));
  }
  const std::string type = new_name ? *new_name : old_name.value_or("default");
  const std::string type_field = new_name ? "rope_type" : "type";
  if (const auto theta = rope.number("rope_theta")) config.rope_theta = *theta;
  rope.only("partial_rotary_factor", 1, "the whole head is rotated");
  const auto factor = rope.number("factor");
  if (type == "default") {
    if (factor && *factor != 1) rope.refuse("factor", *factor, "the type \"default\" has none");
  } else if (type == "linear") {
    if (!factor) rope.reject("factor", nullptr, "given for the type \"linear\"");
    config.rope_linear_factor = *factor;
  } else if (type == "llama3") {
    const auto low = rope.number("low_freq_factor");
    const auto high = rope.number("high_freq_factor");
    if (!factor) rope.reject("factor", nullptr, "given for the type \"llama3\"");
    if (!low) rope.reject("low_freq_factor", nullptr, "given for the type \"llama3\"");
    if (!high) rope.reject("high_freq_factor", nullptr, "given for the type \"llama3\"");
    const auto inner = rope.count("original_max_position_embeddings");
    // transformers 5: the field outside wins, and without any the model's own length counts.
    if (inner && outer_original_context && *inner != *outer_original_context) {
      rope.reject(
          "original_max_position_embeddings", *inner,
          fmt::format("equal to the field of that name outside, {}", *outer_original_context));
    }
    const std::uint32_t original =
        outer_original_context ? *outer_original_context : inner.value_or(config.max_context);
    config.rope_llama3 = Llama3RopeScaling{.factor = *factor,
                                           .low_frequency_factor = *low,
                                           .high_frequency_factor = *high,
                                           .original_context = static_cast<double>(original)};
  } else {
    rope.refuse(type_field, type, "\"default\", \"linear\" and \"llama3\" are");
  }
  rope.finish(/*allow_harmless=*/false);
}

void read_rope(FieldReader& fields, ModelConfig& config, std::string_view origin) {
  const auto outer_theta = fields.number("rope_theta");
  config.rope_theta = outer_theta.value_or(10000);
  const auto outer_original = fields.count("original_max_position_embeddings");
  const OrderedJson* parameters = fields.any("rope_parameters");
  const OrderedJson* scaling = fields.any("rope_scaling");
  // An empty object says nothing, as in transformers.
  if (parameters != nullptr && parameters->empty()) parameters = nullptr;
  if (scaling != nullptr && scaling->empty()) scaling = nullptr;
  if (parameters != nullptr && scaling != nullptr && *parameters != *scaling) {
    fields.reject("rope_scaling", *scaling, "absent where \"rope_parameters\" is given");
  }
  if (parameters == nullptr && scaling == nullptr) return;
  FieldReader rope(parameters != nullptr ? *parameters : *scaling, origin,
                   parameters != nullptr ? "rope_parameters." : "rope_scaling.");
  read_rope_object(rope, config, outer_original);
  if (outer_theta && config.rope_theta != *outer_theta) {
    fields.reject("rope_theta", *outer_theta,
                  fmt::format("equal to the one beside the rope type, {}", config.rope_theta));
  }
}

/// Returns true if `layer_types` has a sliding layer; refuses layers that are not plain attention.
std::optional<bool> read_layer_types(FieldReader& fields, std::uint32_t layers) {
  const OrderedJson* types = fields.any("layer_types");
  if (types == nullptr) return std::nullopt;
  if (!types->is_array() || types->size() != layers) {
    fields.reject("layer_types", *types, fmt::format("a list of {} names, one a layer", layers));
  }
  bool sliding = false;
  for (const OrderedJson& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      fields.refuse("layer_types", type, "full_attention and sliding_attention are");
    }
    sliding = sliding || type == "sliding_attention";
  }
  return sliding;
}

void read_sliding_window(FieldReader& fields, ModelConfig& config) {
  const std::optional<bool> sliding_layers = read_layer_types(fields, config.layers);
  // transformers gives Mistral a window of 4096 tokens unless the file says null.
  const bool absent = !fields.mentions("sliding_window");
  const auto window = fields.count("sliding_window");
  switch (config.family) {
    case Family::gpt2: return;
    case Family::llama:
      if (window) fields.refuse("sliding_window", *window, "a llama model has none");
      if (sliding_layers.value_or(false)) {
        fields.refuse("layer_types", "sliding_attention", "a llama model has full attention");
      }
      return;
    case Family::mistral:
      config.sliding_window = absent ? std::optional<std::uint32_t>(4096) : window;
      return;
    case Family::qwen2:
    case Family::qwen3: break;
  }
  const bool used = fields.boolean("use_sliding_window", /*absent=*/false);
  const std::uint32_t full_layers =
      fields.number("max_window_layers").value_or(28) >= config.layers ? config.layers : 0;
  const bool slides = sliding_layers.value_or(used && full_layers < config.layers);
  if (slides) config.sliding_window = absent ? std::optional<std::uint32_t>(4096) : window;
}

void read_attention(FieldReader& fields, ModelConfig& config) {
  const std::optional<std::uint32_t> kv_heads = fields.count("num_key_value_heads");
  const bool has_default = !fields.mentions("num_key_value_heads");
  // This is what transformers assumes where the field is absent; null means one for each head.
  std::uint32_t absent = config.heads;
  if (has_default && config.family == Family::mistral) absent = 8;
  if (has_default && (config.family == Family::qwen2 || config.family == Family::qwen3))
    absent = 32;
  config.kv_heads = kv_heads.value_or(absent);
  if (config.heads % config.kv_heads != 0) {
    fields.reject("num_key_value_heads", config.kv_heads,
                  fmt::format("a divisor of num_attention_heads, {}", config.heads));
  }
  const auto head_dim = fields.count("head_dim");
  if (head_dim) {
    config.head_dim = *head_dim;
  } else if (config.family == Family::qwen3) {
    config.head_dim = 128;
  } else {
    if (config.width % config.heads != 0) {
      fields.reject("hidden_size", config.width,
                    fmt::format("a multiple of num_attention_heads, {}", config.heads));
    }
    config.head_dim = config.width / config.heads;
  }
  switch (config.family) {
    case Family::llama:
    case Family::qwen3:
      config.qkv_bias = fields.boolean("attention_bias", /*absent=*/false);
      config.attention_output_bias = config.qkv_bias;
      break;
    case Family::qwen2:
      config.qkv_bias = true;
      fields.only("attention_bias", true, "qwen2 always has biases of q, k and v");
      break;
    case Family::gpt2:
    case Family::mistral: break;
  }
  config.qk_norm = config.family == Family::qwen3;
}

/// transformers gives the embedding of these families a padding row. A negative number counts from
/// the end of the vocabulary, as in torch.
void read_padding_token(FieldReader& fields, ModelConfig& config) {
  const OrderedJson* id = fields.any("pad_token_id");
  if (id == nullptr) return;
  const std::int64_t tokens = config.vocab_size;
  const bool whole = id->is_number_integer() && *id >= -tokens && *id < tokens;
  if (!whole) {
    fields.reject("pad_token_id", *id,
                  fmt::format("null or a token of the vocabulary, from 0 to {}", tokens - 1));
  }
  const auto token = id->get<std::int64_t>();
  config.padding_token = static_cast<std::uint32_t>(token < 0 ? token + tokens : token);
}

void read_llama_like(FieldReader& fields, ModelConfig& config, std::string_view origin) {
  config.layers = fields.required_count("num_hidden_layers");
  config.width = fields.required_count("hidden_size");
  config.heads = fields.required_count("num_attention_heads");
  config.max_context = fields.required_count("max_position_embeddings");
  config.ffn_width = fields.required_count("intermediate_size");
  const std::string activation = fields.text("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish") {
    fields.refuse("hidden_act", activation, "\"silu\" is");
  }
  config.activation = Activation::silu;
  config.norm_eps = fields.number("rms_norm_eps").value_or(1e-6);
  config.tied_head = fields.boolean("tie_word_embeddings", /*absent=*/false);
  config.dropout = read_dropout(fields, {"attention_dropout", "hidden_dropout"}, 0);
  read_attention(fields, config);
  if (config.family == Family::llama)
    config.mlp_bias = fields.boolean("mlp_bias", /*absent=*/false);
  read_rope(fields, config, origin);
  read_sliding_window(fields, config);
  read_padding_token(fields, config);
}

}  // namespace

ModelConfig parse_model_config(std::string_view json_text, std::string_view origin) {
  const OrderedJson document =
      parse_ordered_json(json_text, {.origin = origin, .code = ErrorCode::invalid_argument});
  FieldReader fields(document, origin, "");
  ModelConfig config;
  config.family = read_family(fields, origin);
  check_architectures(fields, config.family);
  config.vocab_size = fields.required_count("vocab_size");
  config.init_std = fields.number("initializer_range").value_or(0.02);
  if (config.is_gpt2()) {
    read_gpt2(fields, config);
  } else {
    read_llama_like(fields, config, origin);
  }
  fields.finish(/*allow_harmless=*/true);
  config.source_json = std::string(json_text);
  try {
    validate(config);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", origin, error.what()));
  }
  return config;
}

ModelConfig load_model_config(const std::filesystem::path& config_json) {
  // This is far above any configuration; a wrong file (weights, say) is refused before it is read.
  constexpr Bytes kLargest = 1_MiB;
  const std::string text = read_text_file(config_json, kLargest);
  return parse_model_config(text, config_json.string());
}

}  // namespace spillway::model
