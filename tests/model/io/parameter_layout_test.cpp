#include "runtime/model/parameter_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "runtime/base/error.hpp"
#include "tests/model/io/families.hpp"

namespace spillway::model::parameter_layout_test {
namespace {

using testing::all_families;
using testing::small_gpt2;
using testing::small_llama;

std::vector<std::string> names_of(const BlockLayout& block) {
  std::vector<std::string> names;
  for (const ParameterTensor& tensor : block.tensors) names.push_back(tensor.name);
  return names;
}

TEST(ParameterLayout, PlacesTensorsOfEveryFamilyWithoutGapsMatricesFirst) {
  for (const auto& [name, config] : all_families()) {
    SCOPED_TRACE(name);
    const ModelLayout layout = make_layout(config);
    ASSERT_EQ(layout.blocks.size(), config.layers + 2U);
    std::set<std::string> seen;
    for (const BlockLayout& block : layout.blocks) {
      ElementCount next;
      bool vectors = false;
      for (const ParameterTensor& tensor : block.tensors) {
        EXPECT_TRUE(seen.insert(tensor.name).second) << tensor.name;
        EXPECT_EQ(tensor.first, next) << tensor.name;
        std::uint64_t count = 1;
        for (const std::uint64_t extent : tensor.shape) count *= extent;
        EXPECT_EQ(tensor.count.value(), count) << tensor.name;
        EXPECT_EQ(tensor.is_vector, tensor.shape.size() == 1) << tensor.name;
        EXPECT_TRUE(tensor.is_vector || !vectors) << tensor.name << " after a vector";
        vectors = vectors || tensor.is_vector;
        next += tensor.count;
      }
      EXPECT_EQ(block.parameters, next);
      EXPECT_EQ(block.padded_parameters.value() % kLeafParameters, 0U);
      EXPECT_GE(block.padded_parameters, block.parameters);
      EXPECT_LT(block.padded_parameters.value(), block.parameters.value() + kLeafParameters);
    }
  }
}

TEST(ParameterLayout, CountsTheParametersOfGpt2Small) {
  ModelConfig config = small_gpt2();
  config.vocab_size = 50257;
  config.max_context = 1024;
  config.layers = 12;
  config.width = 768;
  config.heads = config.kv_heads = 12;
  config.head_dim = 64;
  config.ffn_width = 3072;
  EXPECT_EQ(make_layout(config).parameters().value(), 124439808U);
}

TEST(ParameterLayout, CountsTheParametersOfLlama3With8Billion) {
  ModelConfig config = small_llama(Family::llama);
  config.vocab_size = 128256;
  config.max_context = 8192;
  config.layers = 32;
  config.width = 4096;
  config.heads = 32;
  config.kv_heads = 8;
  config.head_dim = 128;
  config.ffn_width = 14336;
  EXPECT_EQ(make_layout(config).parameters().value(), 8030261248U);
}

TEST(ParameterLayout, KeepsTheTensorsOfOneMatrixAdjacent) {
  ModelConfig config = small_llama(Family::llama);
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  EXPECT_THAT(
      names_of(make_layout(config).blocks[2]),
      ::testing::ElementsAre(
          "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight",
          "model.layers.1.self_attn.v_proj.weight", "model.layers.1.self_attn.o_proj.weight",
          "model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight",
          "model.layers.1.mlp.down_proj.weight", "model.layers.1.input_layernorm.weight",
          "model.layers.1.self_attn.q_proj.bias", "model.layers.1.self_attn.k_proj.bias",
          "model.layers.1.self_attn.v_proj.bias", "model.layers.1.self_attn.o_proj.bias",
          "model.layers.1.post_attention_layernorm.weight", "model.layers.1.mlp.gate_proj.bias",
          "model.layers.1.mlp.up_proj.bias", "model.layers.1.mlp.down_proj.bias"));
}

TEST(ParameterLayout, StartsTheEmbeddingBlockWithWhatATiedHeadUses) {
  const ModelLayout tied = make_layout(small_gpt2());
  EXPECT_THAT(names_of(tied.blocks.front()),
              ::testing::ElementsAre("transformer.wte.weight", "transformer.wpe.weight"));
  EXPECT_THAT(names_of(tied.blocks.back()),
              ::testing::ElementsAre("transformer.ln_f.weight", "transformer.ln_f.bias"));
  EXPECT_THAT(names_of(make_layout(small_llama(Family::llama)).blocks.back()),
              ::testing::ElementsAre("lm_head.weight", "model.norm.weight"));
}

TEST(ParameterLayout, ScalesResidualProjectionsOfGpt2Only) {
  for (const auto& [name, config] : all_families()) {
    std::size_t scaled = 0;
    for (const BlockLayout& block : make_layout(config).blocks) {
      for (const ParameterTensor& tensor : block.tensors) {
        if (tensor.initial == Initial::scaled_normal) ++scaled;
      }
    }
    EXPECT_EQ(scaled, config.is_gpt2() ? 2U * config.layers : 0U) << name;
  }
}

TEST(ParameterLayout, RefusesAModelThatCannotBe) {
  ModelConfig config = small_llama(Family::llama);
  config.kv_heads = 3;
  EXPECT_THROW(static_cast<void>(make_layout(config)), Error);
  config = small_llama(Family::llama);
  config.vocab_size = 1U << 27;
  config.width = 1U << 22;
  EXPECT_THROW(static_cast<void>(make_layout(config)), Error);
  EXPECT_THROW(static_cast<void>(make_layout(ModelConfig{})), Error);
}

}  // namespace
}  // namespace spillway::model::parameter_layout_test
