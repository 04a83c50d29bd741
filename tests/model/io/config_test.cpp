#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <ostream>

#include "runtime/base/error.hpp"
#include "runtime/model/model_config.hpp"
#include "tests/model/io/families.hpp"

namespace spillway::model::config_test {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

const ordered_json kGpt2 = ordered_json::parse(R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
  "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
  "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
  "summary_use_proj": true, "vocab_size": 50257,
  "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}})");

const ordered_json kLlama = ordered_json::parse(R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": [128001, 128008], "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})");

const ordered_json kMistral = ordered_json::parse(R"({
  "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
  "tie_word_embeddings": false, "vocab_size": 32000})");

const ordered_json kQwen2 = ordered_json::parse(R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
  "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
  "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32768, "tie_word_embeddings": true, "use_mrope": false,
  "use_sliding_window": false, "vocab_size": 151936})");

const ordered_json kQwen3 = ordered_json::parse(R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
  "intermediate_size": 3072, "layer_types": ["full_attention", "full_attention"],
  "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 2, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
  "sliding_window": null, "tie_word_embeddings": true, "dtype": "float32",
  "use_sliding_window": false, "vocab_size": 151936, "pad_token_id": null})");

ModelConfig parse(const ordered_json& document) {
  return parse_model_config(document.dump(), "config.json");
}

ordered_json with(ordered_json document, const char* patch) {
  // As a merge patch, but null stays: it has a meaning of its own.
  const ordered_json changes = ordered_json::parse(patch);
  for (const auto& [name, value] : changes.items()) document[name] = value;
  return document;
}

ordered_json without(ordered_json document, const std::string& name) {
  document.erase(name);
  return document;
}

TEST(ModelConfig, ReadsGpt2) {
  const ModelConfig config = parse(kGpt2);
  EXPECT_EQ(config.family, Family::gpt2);
  EXPECT_EQ(config.width, 768U);
  EXPECT_EQ(config.heads, 12U);
  EXPECT_EQ(config.kv_heads, 12U);
  EXPECT_EQ(config.head_dim, 64U);
  EXPECT_EQ(config.ffn_width, 3072U);
  EXPECT_EQ(config.max_context, 1024U);
  EXPECT_EQ(config.activation, Activation::gelu_tanh);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.dropout, 0.1);
  EXPECT_EQ(config.norm_eps, 1e-5);
}

TEST(ModelConfig, ReadsLlamaWithScaledRotaryEmbedding) {
  const ModelConfig config = parse(kLlama);
  EXPECT_EQ(config.kv_heads, 8U);
  EXPECT_EQ(config.head_dim, 64U);
  EXPECT_EQ(config.rope_theta, 500000);
  EXPECT_TRUE(config.tied_head);
  EXPECT_FALSE(config.qkv_bias);
  ASSERT_TRUE(config.rope_llama3.has_value());
  EXPECT_EQ(*config.rope_llama3, (Llama3RopeScaling{32, 1, 4, 8192}));
}

TEST(ModelConfig, ReadsTheSameFromBothRotaryLayouts) {
  ordered_json newer = without(without(kLlama, "rope_theta"), "rope_scaling");
  newer["rope_parameters"] = kLlama["rope_scaling"];
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  ModelConfig config = parse(newer);
  config.source_json = kLlama.dump();
  EXPECT_EQ(config, parse(kLlama));
}

TEST(ModelConfig, ReadsTheOldNameOfTheRotaryType) {
  const ModelConfig config =
      parse(with(kMistral, R"({"rope_scaling": {"type": "linear", "factor": 2}})"));
  EXPECT_EQ(config.rope_linear_factor, 2.0);
}

TEST(ModelConfig, TakesTheModelsOwnLengthWhereLlama3ScalingNamesNone) {
  ordered_json document = kLlama;
  document["rope_scaling"].erase("original_max_position_embeddings");
  EXPECT_EQ(parse(document).rope_llama3->original_context, 131072);
}

TEST(ModelConfig, ReadsQwen2AndQwen3) {
  const ModelConfig qwen2 = parse(kQwen2);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.attention_output_bias);
  EXPECT_FALSE(qwen2.qk_norm);
  EXPECT_EQ(qwen2.sliding_window, std::nullopt);
  const ModelConfig qwen3 = parse(kQwen3);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128U);
  EXPECT_EQ(qwen3.rope_theta, 1e6);
}

TEST(ModelConfig, AssumesWhatTransformersAssumesForAbsentFields) {
  EXPECT_EQ(parse(without(kLlama, "num_key_value_heads")).kv_heads, 32U);
  EXPECT_EQ(parse(without(kMistral, "num_key_value_heads")).kv_heads, 8U);
  EXPECT_EQ(parse(with(kMistral, R"({"num_key_value_heads": null})")).kv_heads, 32U);
  EXPECT_EQ(parse(without(kMistral, "rms_norm_eps")).norm_eps, 1e-6);
  EXPECT_EQ(parse(without(kMistral, "rope_theta")).rope_theta, 10000);
  EXPECT_EQ(parse(without(kQwen3, "head_dim")).head_dim, 128U);
  EXPECT_FALSE(parse(without(kLlama, "tie_word_embeddings")).tied_head);
  EXPECT_EQ(parse(with(kGpt2, R"({"n_inner": null})")).ffn_width, 3072U);
}

TEST(ModelConfig, GivesMistralItsWindowUnlessTheFileSaysNull) {
  EXPECT_EQ(parse(kMistral).sliding_window, 4096U);
  EXPECT_EQ(parse(without(kMistral, "sliding_window")).sliding_window, 4096U);
  EXPECT_EQ(parse(with(kMistral, R"({"sliding_window": null})")).sliding_window, std::nullopt);
}

TEST(ModelConfig, KeepsTheWindowOfQwenOnlyWhereALayerSlides) {
  EXPECT_EQ(parse(with(kQwen2, R"({"use_sliding_window": true})")).sliding_window, std::nullopt);
  EXPECT_EQ(parse(with(kQwen2, R"({"use_sliding_window": true, "max_window_layers": 20})"))
                .sliding_window,
            32768U);
  EXPECT_EQ(parse(with(kQwen3, R"({"use_sliding_window": true, "sliding_window": 64,
                                   "layer_types": ["full_attention", "sliding_attention"]})"))
                .sliding_window,
            64U);
}

TEST(ModelConfig, RefusesAContextThatAWindowWouldCut) {
  const ModelConfig config = parse(kMistral);
  EXPECT_NO_THROW(check_context(config, 4096));
  try {
    check_context(config, 4097);
    FAIL() << "a context longer than the window passed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_THAT(error.what(), HasSubstr("sliding_window is 4096"));
  }
  EXPECT_THROW(check_context(parse(kGpt2), 1025), Error);
  EXPECT_THROW(check_context(parse(kGpt2), 0), Error);
}

TEST(ModelConfig, AcceptsTheHarmlessExtrasOfRealCheckpoints) {
  EXPECT_NO_THROW(static_cast<void>(parse(with(kGpt2, R"({"n_special": 0, "pruned_heads": {},
      "predict_special_tokens": true, "_num_labels": 1, "top_p": 0.9, "use_bfloat16": false})"))));
  EXPECT_NO_THROW(static_cast<void>(parse(with(kLlama, R"({"is_llama_config": true,
      "rope_interleaved": false, "partial_rotary_factor": 1.0, "clip_qkv": null,
      "transformers.js_config": {"dtype": "q4"}, "_attn_implementation_autoset": true})"))));
}

struct Refusal {
  const ordered_json* base;
  const char* patch;
  const char* field;  ///< what the message must name
  const char* value;  ///< and show
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.patch; }

class ConfigRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(ConfigRefusal, NamesTheFieldAndItsValue) {
  const Refusal& refusal = GetParam();
  try {
    static_cast<void>(parse(with(*refusal.base, refusal.patch)));
    FAIL() << "accepted: " << refusal.patch;
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::not_supported ||
                error.code() == ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("config.json: "));
    EXPECT_THAT(error.what(), HasSubstr(refusal.field));
    EXPECT_THAT(error.what(), HasSubstr(refusal.value));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Architecture, ConfigRefusal,
    ::testing::Values(
        Refusal{&kLlama, R"({"model_type": "mixtral"})", "model_type", "mixtral"},
        Refusal{&kLlama, R"({"model_type": 3})", "model_type", "3"},
        Refusal{&kLlama, R"({"architectures": ["LlamaForSequenceClassification"]})",
                "architectures", "LlamaForSequenceClassification"},
        Refusal{&kLlama, R"({"auto_map": {"AutoModel": "x.Y"}})", "auto_map", "x.Y"},
        Refusal{&kLlama, R"({"hidden_act": "relu"})", "hidden_act", "relu"},
        Refusal{&kLlama, R"({"hidden_act": "gelu"})", "hidden_act", "gelu"},
        Refusal{&kGpt2, R"({"activation_function": "relu"})", "activation_function", "relu"},
        Refusal{&kGpt2, R"({"scale_attn_weights": false})", "scale_attn_weights", "false"},
        Refusal{&kGpt2, R"({"scale_attn_by_inverse_layer_idx": true})",
                "scale_attn_by_inverse_layer_idx", "true"},
        Refusal{&kGpt2, R"({"reorder_and_upcast_attn": true})", "reorder_and_upcast_attn", "true"},
        Refusal{&kGpt2, R"({"add_cross_attention": true})", "add_cross_attention", "true"},
        Refusal{&kGpt2, R"({"is_encoder_decoder": true})", "is_encoder_decoder", "true"},
        Refusal{&kGpt2, R"({"pruned_heads": {"0": [1]}})", "pruned_heads", "{\"0\":[1]}"},
        Refusal{&kGpt2, R"({"rope_theta": 10000})", "rope_theta", "10000"},
        Refusal{&kLlama, R"({"pretraining_tp": 2})", "pretraining_tp", "2"},
        Refusal{&kLlama, R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor", "0.5"},
        Refusal{&kLlama, R"({"quantization_config": {"bits": 4}})", "quantization_config",
                "export the model in bf16"},
        Refusal{&kLlama, R"({"attn_logit_softcapping": 50.0})", "attn_logit_softcapping", "50.0"},
        Refusal{&kLlama, R"({"final_logit_softcapping": 30.0})", "final_logit_softcapping", "30"},
        Refusal{&kLlama, R"({"logits_scaling": 8})", "logits_scaling", "8"},
        Refusal{&kLlama, R"({"attention_multiplier": 0.01})", "attention_multiplier", "0.01"},
        Refusal{&kLlama, R"({"residual_multiplier": 0.2})", "residual_multiplier", "0.2"},
        Refusal{&kLlama, R"({"embedding_multiplier": 12})", "embedding_multiplier", "12"},
        Refusal{&kLlama, R"({"clip_qkv": 8})", "clip_qkv", "8"},
        Refusal{&kLlama, R"({"mup_base_width": 256})", "mup_base_width", "256"},
        Refusal{&kLlama, R"({"num_local_experts": 8})", "num_local_experts", "8"},
        Refusal{&kLlama, R"({"num_experts_per_tok": 2})", "num_experts_per_tok", "2"},
        Refusal{&kLlama, R"({"per_layer_config": {"0": {"hidden_size": 4}}})", "per_layer_config",
                "hidden_size"},
        Refusal{&kLlama, R"({"surprise": true})", "surprise", "true"},
        Refusal{&kLlama, R"({"sliding_window": 4096})", "sliding_window", "4096"},
        Refusal{&kQwen2, R"({"attention_bias": false})", "attention_bias", "false"},
        Refusal{&kQwen2, R"({"use_mrope": true})", "use_mrope", "true"},
        Refusal{&kMistral, R"({"attention_bias": true})", "attention_bias", "true"},
        Refusal{&kQwen3, R"({"layer_types": ["full_attention"]})", "layer_types", "one a layer"},
        Refusal{&kQwen3, R"({"layer_types": ["full_attention", "linear_attention"]})",
                "layer_types", "linear_attention"}));

INSTANTIATE_TEST_SUITE_P(
    Rope, ConfigRefusal,
    ::testing::Values(
        Refusal{&kQwen2, R"({"rope_scaling": {"type": "yarn", "factor": 4.0}})",
                "rope_scaling.type", "yarn"},
        Refusal{&kQwen2, R"({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}})",
                "rope_scaling.rope_type", "dynamic"},
        Refusal{&kQwen2, R"({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}})",
                "rope_type", "longrope"},
        Refusal{&kQwen2, R"({"rope_scaling": {"rope_type": "linear"}})", "factor", "null"},
        Refusal{&kQwen2, R"({"rope_scaling": {"rope_type": "linear", "factor": 0}})", "factor",
                "0"},
        Refusal{&kQwen2, R"({"rope_scaling": {"rope_type": "default", "factor": 2}})", "factor",
                "2"},
        Refusal{&kQwen2, R"({"rope_scaling": {"rope_type": "linear", "type": "default"}})", "type",
                "default"},
        Refusal{&kQwen2, R"({"rope_scaling": [1]})", "rope_scaling", "[1]"},
        Refusal{&kQwen2, R"({"rope_scaling": {"mrope_section": [1, 2]}})", "mrope_section",
                "[1,2]"},
        Refusal{&kQwen3, R"({"rope_theta": 10000})", "rope_theta", "10000"},
        Refusal{&kQwen3, R"({"rope_scaling": {"rope_type": "linear", "factor": 2}})",
                "rope_scaling", "linear"},
        Refusal{&kQwen3, R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})",
                "rope_parameters.full_attention", "default"},
        Refusal{&kQwen3, R"({"rope_parameters": {"partial_rotary_factor": 0.25}})",
                "rope_parameters.partial_rotary_factor", "0.25"},
        Refusal{&kLlama, R"({"original_max_position_embeddings": 4096})",
                "original_max_position_embeddings", "8192"},
        Refusal{&kLlama, R"({"rope_scaling": {"rope_type": "llama3", "factor": 8,
                                              "low_freq_factor": 4, "high_freq_factor": 4}})",
                "high_freq_factor", "4"},
        Refusal{&kLlama, R"({"rope_theta": -1})", "rope_theta", "-1"}));

INSTANTIATE_TEST_SUITE_P(
    Ranges, ConfigRefusal,
    ::testing::Values(
        Refusal{&kGpt2, R"({"n_embd": 0})", "n_embd", "0"},
        Refusal{&kGpt2, R"({"n_embd": -768})", "n_embd", "-768"},
        Refusal{&kGpt2, R"({"n_embd": 768.5})", "n_embd", "768.5"},
        Refusal{&kGpt2, R"({"n_embd": "768"})", "n_embd", "768"},
        Refusal{&kGpt2, R"({"n_embd": 770})", "n_embd", "12"},
        Refusal{&kGpt2, R"({"n_embd": null})", "n_embd", "missing"},
        Refusal{&kGpt2, R"({"hidden_size": 1024})", "hidden_size", "768"},
        Refusal{&kGpt2, R"({"n_embd": 4294967296})", "n_embd", "4294967296"},
        Refusal{&kGpt2, R"({"n_embd": 2147483640, "n_head": 1})", "n_embd", "2147483640"},
        Refusal{&kGpt2, R"({"n_layer": 99999999})", "n_layer", "99999999"},
        Refusal{&kGpt2, R"({"n_positions": 134217729})", "n_positions", "134217729"},
        Refusal{&kGpt2, R"({"vocab_size": 18446744073709551616})", "vocab_size", "1.8"},
        Refusal{&kGpt2, R"({"layer_norm_epsilon": -1})", "norm epsilon", "-1"},
        Refusal{&kGpt2, R"({"layer_norm_epsilon": "1e-5"})", "layer_norm_epsilon", "1e-5"},
        Refusal{&kGpt2, R"({"attn_pdrop": 2})", "attn_pdrop", "2"},
        Refusal{&kGpt2, R"({"initializer_range": -0.02})", "initializer_range", "-0.02"},
        Refusal{&kGpt2, R"({"tie_word_embeddings": 1})", "tie_word_embeddings", "1"},
        Refusal{&kLlama, R"({"num_key_value_heads": 5})", "num_key_value_heads", "32"},
        Refusal{&kLlama, R"({"num_attention_heads": 24, "num_key_value_heads": 24})", "hidden_size",
                "2048"},
        Refusal{&kLlama, R"({"head_dim": 63})", "head_dim", "63"},
        Refusal{&kLlama, R"({"sliding_window": 0})", "sliding_window", "0"},
        Refusal{&kLlama, R"({"vocab_size": 100000000, "hidden_size": 8388608, "head_dim": 64})",
                "2^48", ""}));

TEST(ModelConfig, RefusesTextThatIsNotOneObject) {
  for (const char* text :
       {"", "[]", "3", "{", "{} x", "{\"model_type\": \"gpt2\",}", "null",
        R"({"model_type": "gpt2", "model_type": "llama"})", "\xff{}", R"({"vocab_size": 1e999})"}) {
    EXPECT_THROW(static_cast<void>(parse_model_config(text, "config.json")), Error) << text;
  }
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THROW(static_cast<void>(parse_model_config(deep, "config.json")), Error);
}

TEST(ModelConfig, RefusesADuplicateKeyByName) {
  try {
    static_cast<void>(parse_model_config(R"({"vocab_size": 5, "vocab_size": 6})", "c"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("key vocab_size stands twice"));
  }
}

TEST(ModelConfig, SurvivesItsOwnJsonForEveryFamily) {
  for (const auto& [name, config] : testing::all_families()) {
    ModelConfig again = parse_model_config(to_config_json(config, DType::fp32), name);
    again.source_json.clear();
    EXPECT_EQ(again, config) << name;
  }
}

TEST(ModelConfig, KeepsTheFieldsItWasReadFrom) {
  for (const ordered_json* source : {&kGpt2, &kLlama, &kMistral, &kQwen2, &kQwen3}) {
    ordered_json written = ordered_json::parse(to_config_json(parse(*source), DType::bf16));
    EXPECT_EQ(written.value(written.contains("dtype") ? "dtype" : "torch_dtype", ""), "bfloat16");
    for (const auto& [name, value] : source->items()) {
      if (name == "dtype" || name == "torch_dtype") continue;
      EXPECT_EQ(written[name], value) << name;
    }
  }
}

TEST(ModelConfig, ReplacesWhatChangedSinceItWasRead) {
  ModelConfig config = parse(kLlama);
  config.rope_llama3.reset();
  config.tied_head = false;
  config.vocab_size = 128264;
  const ordered_json written = ordered_json::parse(to_config_json(config, DType::fp16));
  EXPECT_EQ(written["tie_word_embeddings"], false);
  EXPECT_EQ(written["vocab_size"], 128264);
  EXPECT_TRUE(written["rope_scaling"].is_null());
  EXPECT_EQ(written["torch_dtype"], "float16");
  EXPECT_EQ(written["eos_token_id"], kLlama["eos_token_id"]);

  ModelConfig newer = parse(kQwen3);
  newer.rope_linear_factor = 2;
  ModelConfig again = parse_model_config(to_config_json(newer, DType::fp32), "again");
  EXPECT_EQ(again.rope_linear_factor, 2.0);
  EXPECT_EQ(again.rope_theta, 1e6);
}

TEST(ModelConfig, WillNotWriteWhatTheFamilyCannotSay) {
  ModelConfig config = testing::small_llama(Family::mistral);
  config.qkv_bias = true;
  EXPECT_THROW(static_cast<void>(to_config_json(config, DType::fp32)), Error);
}

TEST(ModelConfig, NamesTheFileThatIsMissing) {
  try {
    static_cast<void>(load_model_config("/nonexistent/config.json"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io_error);
    EXPECT_THAT(error.what(), HasSubstr("/nonexistent/config.json"));
  }
}

}  // namespace
}  // namespace spillway::model::config_test
