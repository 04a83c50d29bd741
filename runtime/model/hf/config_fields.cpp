#include "runtime/model/hf/config_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/json.hpp"

namespace spillway::model::detail {

using nlohmann::ordered_json;

namespace {

/// Returns true if `list`, words that each end in a space, has `word`.
constexpr bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t end = list.find(' ');
    if (list.substr(0, end) == word) return true;
    list.remove_prefix(end + 1);
  }
  return false;
}

/// Lists names, ids, caches, dtypes, label maps and output switches: present in real checkpoints,
/// without effect on the logits of a causal model.
constexpr std::string_view kHarmless =
    "architectures attn_implementation bos_token_id chunk_size_feed_forward classifier_dropout "
    "decoder_start_token_id dtype eos_token_id finetuning_task gradient_checkpointing id2label "
    "is_decoder is_llama_config keys_to_ignore_at_inference label2id max_sequence_length "
    "model_max_length model_type n_ctx n_special name_or_path num_labels output_attentions "
    "output_hidden_states pad_token_id predict_special_tokens prefix problem_type return_dict "
    "sep_token_id task_specific_params tie_last_hidden_states tokenizer_class torch_dtype "
    "torchscript transformers.js_config transformers_version unk_token_id unsloth_fixed "
    "unsloth_version use_bfloat16 use_cache ";

/// Lists settings of generation, which older versions of transformers kept in config.json.
constexpr std::string_view kGeneration =
    "assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens "
    "diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size "
    "encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty "
    "forced_bos_token_id forced_eos_token_id length_penalty max_length max_new_tokens min_length "
    "no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups "
    "num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty "
    "return_dict_in_generate suppress_tokens target_lookbehind temperature top_k top_p typical_p ";

/// Describes a field of other architectures, accepted at the one value that switches it off.
struct Neutral {
  std::string_view name;
  std::string_view value;  // JSON
};
constexpr std::array<Neutral, 18> kNeutral{{{"add_cross_attention", "false"},
                                            {"alibi", "false"},
                                            {"attention_bias", "false"},
                                            {"attention_multiplier", "1"},
                                            {"embedding_multiplier", "1"},
                                            {"is_encoder_decoder", "false"},
                                            {"logit_scale", "1"},
                                            {"logits_scaling", "1"},
                                            {"mlp_bias", "false"},
                                            {"partial_rotary_factor", "1"},
                                            {"pretraining_tp", "1"},
                                            {"pruned_heads", "{}"},
                                            {"residual_multiplier", "1"},
                                            {"rope_interleaved", "false"},
                                            {"tie_encoder_decoder", "false"},
                                            {"use_mrope", "false"},
                                            {"use_qk_norm", "false"},
                                            {"use_sliding_window", "false"}}};

std::string_view remedy_for(std::string_view name) {
  if (name == "quantization_config") {
    return "quantized weights cannot be trained; export the model in bf16, fp16 or fp32 first";
  }
  if (name == "auto_map") {
    return "the model brings code of its own; remove the field if its architecture is the standard "
           "one";
  }
  return "Spillway does not know this field; remove it if it does not change the model's "
         "mathematics";
}

}  // namespace

bool is_harmless_field(std::string_view name) {
  // GPT-2's summary_* belong to a classification head; a leading underscore marks bookkeeping.
  return name.starts_with('_') || name.starts_with("summary_") || has_word(kHarmless, name) ||
         has_word(kGeneration, name);
}

FieldReader::FieldReader(const ordered_json& object, std::string_view origin, std::string path)
    : object_(object), origin_(origin), path_(std::move(path)) {
  check(object.is_object(), ErrorCode::invalid_argument,
        fmt::format("{}: {} is {}; it must be a JSON object", origin,
                    path_.empty() ? "the document" : path_, brief(object)));
}

const ordered_json* FieldReader::any(std::string_view name) {
  read_.emplace(name);
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool FieldReader::mentions(std::string_view name) const {
  return object_.contains(std::string(name));
}

std::optional<std::uint32_t> FieldReader::count(std::string_view name) {
  const ordered_json* value = any(name);
  if (value == nullptr) return std::nullopt;
  const bool whole = value->is_number_unsigned();
  const std::uint64_t amount = whole ? value->get<std::uint64_t>() : 0;
  if (amount < 1 || amount > 0x7fffffffU) reject(name, *value, "a whole number from 1 to 2^31-1");
  return static_cast<std::uint32_t>(amount);
}

std::uint32_t FieldReader::required_count(std::string_view name) {
  const std::optional<std::uint32_t> value = count(name);
  if (!value) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: \"{}{}\" is missing; a model of this type needs it", origin_,
                            path_, name));
  }
  return *value;
}

std::optional<double> FieldReader::number(std::string_view name) {
  const ordered_json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) reject(name, *value, "a number");
  return value->get<double>();
}

bool FieldReader::boolean(std::string_view name, bool absent) {
  const ordered_json* value = any(name);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) reject(name, *value, "true or false");
  return value->get<bool>();
}

std::optional<std::string> FieldReader::text(std::string_view name) {
  const ordered_json* value = any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) reject(name, *value, "a string");
  return value->get<std::string>();
}

void FieldReader::only(std::string_view name, const ordered_json& supported,
                       std::string_view remedy) {
  const ordered_json* value = any(name);
  if (value != nullptr && *value != supported) refuse(name, *value, remedy);
}

void FieldReader::refuse(std::string_view name, const ordered_json& value,
                         std::string_view remedy) const {
  throw Error(ErrorCode::not_supported,
              fmt::format("{}: \"{}{}\" is {}, which is not supported; {}", origin_, path_, name,
                          brief(value), remedy));
}

void FieldReader::reject(std::string_view name, const ordered_json& value,
                         std::string_view rule) const {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: \"{}{}\" is {}; it must be {}", origin_,
                                                       path_, name, brief(value), rule));
}

void FieldReader::finish(bool allow_harmless) {
  for (const auto& [name, value] : object_.items()) {
    if (read_.contains(name) || value.is_null()) continue;
    if (allow_harmless && is_harmless_field(name)) continue;
    const auto neutral = std::ranges::find(kNeutral, std::string_view(name), &Neutral::name);
    if (neutral != kNeutral.end()) {
      const ordered_json supported = parse_ordered_json(neutral->value, {.origin = neutral->name});
      if (value == supported) continue;
      refuse(name, value, fmt::format("only {} is", neutral->value));
    }
    refuse(name, value, remedy_for(name));
  }
}

}  // namespace spillway::model::detail
