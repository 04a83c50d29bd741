// What fields of config.json mean for the training, beyond their values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "runtime/base/error.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::model::config_meaning_test {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

const ordered_json kGpt2 = ordered_json::parse(R"({
  "model_type": "gpt2", "n_embd": 48, "n_head": 2, "n_layer": 2, "n_positions": 1024,
  "vocab_size": 50257})");
const ordered_json kLlama = ordered_json::parse(R"({
  "model_type": "llama", "hidden_size": 48, "intermediate_size": 96,
  "max_position_embeddings": 131072, "num_attention_heads": 4, "num_hidden_layers": 2,
  "num_key_value_heads": 4, "vocab_size": 32000})");

ordered_json with(ordered_json document, const char* patch) {
  const ordered_json changes = ordered_json::parse(patch);
  for (const auto& [name, value] : changes.items()) document[name] = value;
  return document;
}
const ordered_json kMistral = with(kLlama, R"({"model_type": "mistral", "sliding_window": 4096})");

ModelConfig parse(const ordered_json& document) {
  return parse_model_config(document.dump(), "config.json");
}

TEST(ModelMeaning, TakesThePaddingTokenWhereTransformersDoes) {
  EXPECT_EQ(parse(kLlama).padding_token, std::nullopt);
  EXPECT_EQ(parse(with(kLlama, R"({"pad_token_id": null})")).padding_token, std::nullopt);
  for (const char* const family : {"llama", "mistral", "qwen2", "qwen3"}) {
    ordered_json document = with(kLlama, R"({"pad_token_id": 2})");
    document["model_type"] = family;
    EXPECT_EQ(parse(document).padding_token, 2U) << family;
  }
  EXPECT_EQ(parse(with(kMistral, R"({"pad_token_id": -1})")).padding_token, 31999U);
  EXPECT_EQ(parse(with(kGpt2, R"({"pad_token_id": 2})")).padding_token, std::nullopt);
}

TEST(ModelMeaning, WritesThePaddingToken) {
  ModelConfig config = parse(with(kMistral, R"({"pad_token_id": -1})"));
  EXPECT_EQ(ordered_json::parse(to_config_json(config, DType::fp32))["pad_token_id"], -1);
  config.padding_token = 3;
  EXPECT_EQ(ordered_json::parse(to_config_json(config, DType::fp32))["pad_token_id"], 3);
  config.source_json.clear();
  EXPECT_EQ(ordered_json::parse(to_config_json(config, DType::fp32))["pad_token_id"], 3);
}

// Other readers need not know what transformers takes where nothing is said.
TEST(ModelMeaning, WritesTheActivation) {
  for (const auto& [document, name, value] :
       {std::tuple(&kGpt2, "activation_function", "gelu_new"),
        std::tuple(&kLlama, "hidden_act", "silu"), std::tuple(&kMistral, "hidden_act", "silu")}) {
    ModelConfig config = parse(*document);
    config.source_json.clear();
    EXPECT_EQ(ordered_json::parse(to_config_json(config, DType::fp32))[name], value);
  }
}

// A file of a body alone has the body's class, or none. What is written has the head too.
TEST(ModelMeaning, WritesTheClassThatHasTheHead) {
  for (const ordered_json& body : {kGpt2, with(kGpt2, R"({"architectures": ["GPT2Model"]})")}) {
    EXPECT_EQ(ordered_json::parse(to_config_json(parse(body), DType::fp32))["architectures"],
              ordered_json::array({"GPT2LMHeadModel"}));
  }
}

TEST(ModelMeaning, ReachesAsFarAsALinearRotaryEmbeddingDoes) {
  const ordered_json vicuna = with(kLlama, R"({"max_position_embeddings": 4096,
      "rope_scaling": {"type": "linear", "factor": 4.0}})");
  EXPECT_EQ(longest_context(parse(vicuna)), 16384U);
  EXPECT_NO_THROW(check_context(parse(vicuna), 16384));
  try {
    check_context(parse(vicuna), 16385);
    FAIL() << "a context beyond all positions passed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rotary factor of 4; use at most 16384"));
  }
  EXPECT_EQ(longest_context(parse(kLlama)), 131072U);
  EXPECT_EQ(longest_context(parse(kMistral)), 4096U) << "the window";
}

TEST(ModelMeaning, TakesTheDropoutThatTransformersTakes) {
  EXPECT_EQ(parse(kGpt2).dropout, 0.1);
  EXPECT_EQ(parse(kLlama).dropout, 0);
}

TEST(ModelMeaning, WritesTheDropoutOfAttention) {
  ModelConfig config = parse(with(kLlama, R"({"attention_dropout": 0.25})"));
  config.source_json.clear();
  EXPECT_EQ(ordered_json::parse(to_config_json(config, DType::fp32))["attention_dropout"], 0.25);
}

}  // namespace
}  // namespace spillway::model::config_meaning_test
