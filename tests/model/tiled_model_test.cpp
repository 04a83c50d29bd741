// A model whose matrices are cut into tiles against the same model whole: loss and gradients; and
// its own promises: the same bits from every call, from recomputation and in every memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "runtime/base/error.hpp"
#include "tests/model/tiled_harness.hpp"
#include "tests/model/tiny_models.hpp"

namespace spillway::model::tiled_model_test {
namespace {

/// With every vector that the families know: biases, and norms of heads.
ModelConfig config_of(Family family) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 203;
  config.max_context = 40;
  config.layers = 2;
  config.width = 24;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.ffn_width = 52;
  config.activation = Activation::silu;
  config.tied_head = false;
  config.qk_norm = family == Family::qwen3;
  config.qkv_bias = family != Family::qwen3;
  config.attention_output_bias = config.mlp_bias = family == Family::llama;
  return config;
}

/// From one row of the widest matrix at a time to whole layers in a tile.
constexpr std::uint64_t kTiles[] = {52, 700, 1664, 100000};

std::unique_ptr<ModelHarness> whole_model(const ModelConfig& config, DType compute) {
  return make_model(config, make_case_ops(case_of(compute)));
}

std::map<std::string, std::vector<float>> gradients_of(ModelHarness& model) {
  std::map<std::string, std::vector<float>> tensors;
  for (std::uint32_t b = 0; b < model.blocks(); ++b) {
    for (const ParameterTensor& tensor : model.layout().blocks[b].tensors) {
      const auto part = model.gradients(b).subspan(tensor.first.value(), tensor.count.value());
      tensors[tensor.name].assign(part.begin(), part.end());
    }
  }
  return tensors;
}

class TiledModel : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (const std::string reason = reason_to_skip(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(TiledModel, HasTheLossAndGradientsOfTheWholeModel) {
  // Sums in other orders: fp32 a few units in 2^-24 times the depth; in 16 bits each activation
  // rounds by up to 2^-9 (bf16) or 2^-12 (fp16), and roundings of 20 operators add up.
  const double of_host = GetParam() == DType::fp32 ? 2e-6 : GetParam() == DType::fp16 ? 4e-3 : 3e-2;
  const double tolerance = std::max(of_host, device_tolerance(GetParam()));
  for (const Family family : {Family::llama, Family::qwen2, Family::qwen3}) {
    const ModelConfig config = config_of(family);
    const auto whole = whole_model(config, GetParam());
    Random random;
    const Data data(random, config.vocab_size);
    const double loss = whole->step(data.tokens, data.targets, 1.0F / kTokens, true);
    const auto expected = gradients_of(*whole);
    for (const std::uint64_t tile : kTiles) {
      SCOPED_TRACE(testing::Message() << name_of(family) << " in tiles of " << tile);
      TiledHarness tiled(config, kBatch, make_case_ops(case_of(GetParam())), tile);
      tiled.copy_parameters(*whole);
      EXPECT_NEAR(tiled.step(data.tokens, data.targets, 1.0F / kTokens, true), loss,
                  tolerance * loss);
      auto actual = tiled.gradients();
      EXPECT_THAT(actual["padding"], testing::Each(0.0F));
      for (const auto& [name, gradient] : expected) {
        ASSERT_EQ(actual[name].size(), gradient.size()) << name;
        EXPECT_LT(distance(actual[name], gradient), tolerance) << name;
      }
    }
  }
}

TEST_P(TiledModel, HasTheSameBitsFromEveryCallAndFromRecomputation) {
  const ModelConfig config = config_of(Family::qwen3);
  const auto whole = whole_model(config, GetParam());
  Random random;
  const Data data(random, config.vocab_size);
  for (const std::uint64_t tile : kTiles) {
    TiledHarness tiled(config, kBatch, make_case_ops(case_of(GetParam())), tile);
    tiled.copy_parameters(*whole);
    const double loss = tiled.step(data.tokens, data.targets, 1.0F / kTokens, true);
    const auto first = tiled.gradients();
    EXPECT_EQ(tiled.step(data.tokens, data.targets, 1.0F / kTokens, true, Activations::recomputed),
              loss);
    EXPECT_EQ(tiled.gradients(), first) << tile;
    TiledHarness other(config, kBatch, make_case_ops(case_of(GetParam())), tile);
    other.copy_parameters(*whole);
    EXPECT_EQ(other.step(data.tokens, data.targets, 1.0F / kTokens, true), loss);
    EXPECT_EQ(other.gradients(), first) << "from another instance, tiles of " << tile;
  }
}

TEST_P(TiledModel, HasTheGradientsOfATiedHeadForEachUseOfTheEmbedding) {
  const double of_host = GetParam() == DType::fp32 ? 2e-6 : GetParam() == DType::fp16 ? 4e-3 : 3e-2;
  const double tolerance = std::max(of_host, device_tolerance(GetParam()));  // as above
  ModelConfig config = config_of(Family::qwen3);
  config.tied_head = true;
  const auto whole = whole_model(config, GetParam());
  Random random;
  const Data data(random, config.vocab_size);
  const double loss = whole->step(data.tokens, data.targets, 1.0F / kTokens, true);
  const auto expected = gradients_of(*whole);
  const std::vector<float> tied(whole->tied_gradients().begin(), whole->tied_gradients().end());
  for (const std::uint64_t tile : kTiles) {
    SCOPED_TRACE(tile);
    TiledHarness tiled(config, kBatch, make_case_ops(case_of(GetParam())), tile);
    tiled.copy_parameters(*whole);
    EXPECT_NEAR(tiled.step(data.tokens, data.targets, 1.0F / kTokens, true), loss,
                tolerance * loss);
    auto actual = tiled.gradients();
    EXPECT_THAT(actual["padding"], testing::Each(0.0F));
    for (const auto& [name, gradient] : expected) {
      EXPECT_LT(distance(actual[name], gradient), tolerance) << name;
    }
    ASSERT_EQ(tiled.tied_gradients().size(), tied.size());
    EXPECT_LT(distance(tiled.tied_gradients(), tied), tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryDType, TiledModel,
                         testing::Values(DType::fp32, DType::bf16, DType::fp16),
                         [](const auto& c) { return std::string(name_of(c.param)); });

class TiledModels : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = reason_to_skip(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(TiledModels, AddTheGradientsOfMicroBatches) {
  const ModelConfig config = config_of(Family::llama);
  const auto whole = whole_model(config, DType::fp32);
  Random random;
  const Data one(random, config.vocab_size);
  const Data two(random, config.vocab_size);
  TiledHarness tiled(config, kBatch, make_case_ops(case_of(DType::fp32)), 700);
  tiled.copy_parameters(*whole);
  tiled.step(one.tokens, one.targets, 1, true);
  const auto of_one = tiled.gradients();
  tiled.step(two.tokens, two.targets, 1, true);
  const auto of_two = tiled.gradients();
  tiled.step(one.tokens, one.targets, 1, false);
  for (const auto& [name, sum] : tiled.gradients()) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      // One rounding each way; sums are of order 1 to 10.
      ASSERT_NEAR(sum[i], of_one.at(name)[i] + of_two.at(name)[i], 1e-4) << name << " " << i;
    }
  }
}

TEST_F(TiledModels, DoTheWorkOfTheWholeModel) {
  const ModelConfig config = config_of(Family::llama);
  const auto ops = make_case_ops(case_of(DType::fp32));
  const auto total = [&](std::uint64_t tile) {
    const Transformer model(config, kBatch, DType::fp32, *ops, tile);
    std::pair<double, double> flops;
    for (std::uint32_t b = 0; b < model.layout().blocks.size(); ++b) {
      flops.first += model.forward_flops(b);
      flops.second += model.backward_flops(b);
    }
    return flops;
  };
  for (const std::uint64_t tile : kTiles) EXPECT_EQ(total(tile), total(0)) << tile;
}

TEST_F(TiledModels, RecomputeOnlyWhatBackwardReads) {
  const ModelConfig config = config_of(Family::llama);
  const auto ops = make_case_ops(case_of(DType::fp32));
  const Transformer model(config, kBatch, DType::fp32, *ops, 700);
  for (std::uint32_t b = 0; b < model.layout().blocks.size(); ++b) {
    const BlockLayout& block = model.layout().blocks[b];
    bool feeds = false;
    for (const ParameterTensor& tensor : block.tensors) {
      feeds = feeds || (block.layer > 0 && block.layer <= config.layers && !tensor.is_vector &&
                        !tensor.name.ends_with("down_proj.weight"));
    }
    EXPECT_EQ(model.feeds_backward(b), feeds) << block.name;
  }
}

}  // namespace
}  // namespace spillway::model::tiled_model_test
