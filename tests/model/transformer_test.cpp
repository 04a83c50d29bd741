// Properties of the whole model that no comparison with a peer shows, on every device: the same
// bits from the same inputs and from recomputation; accumulation; gradients; windows.
#include "tests/model/tiny_models.hpp"

namespace spillway::model::transformer_test {
namespace {

class Transformers : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = reason_to_skip(); !reason.empty()) GTEST_SKIP() << reason;
  }
  static std::unique_ptr<ModelHarness> make(const ModelConfig& config, DType dtype = DType::fp32) {
    return make_model(config, make_case_ops(case_of(dtype)));
  }
};

std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }

class TransformerBits : public Transformers, public testing::WithParamInterface<DType> {};

TEST_P(TransformerBits, AreTheSameFromEveryCallAndFromRecomputation) {
  for (const ModelConfig& config : {tiny_gpt2(), tiny_qwen3(), tiny_llama()}) {
    Random random;
    const Data data(random, config.vocab_size);
    const auto model = make(config, GetParam());
    const double loss = model->step(data.tokens, data.targets, 1.0F / kTokens, true);
    const std::vector<std::uint32_t> first = bits(*model);
    EXPECT_TRUE(std::isfinite(loss));
    EXPECT_EQ(model->step(data.tokens, data.targets, 1.0F / kTokens, true), loss);
    EXPECT_EQ(bits(*model), first);
    EXPECT_EQ(model->step(data.tokens, data.targets, 1.0F / kTokens, true, Activations::recomputed),
              loss);
    EXPECT_EQ(bits(*model), first);
    const auto other = make(config, GetParam());
    EXPECT_EQ(other->step(data.tokens, data.targets, 1.0F / kTokens, true), loss);
    EXPECT_EQ(bits(*other), first) << "from another instance";
  }
}

INSTANTIATE_TEST_SUITE_P(EveryDType, TransformerBits,
                         testing::Values(DType::fp32, DType::bf16, DType::fp16),
                         [](const auto& c) { return std::string(name_of(c.param)); });

TEST_F(Transformers, AddsTheGradientsOfMicroBatches) {
  for (const ModelConfig& config : {tiny_gpt2(), tiny_qwen3()}) {
    Random random;
    const Data one(random, config.vocab_size);
    const Data two(random, config.vocab_size);
    const auto model = make(config);
    model->step(two.tokens, two.targets, 1, true);
    std::vector<std::vector<float>> of_two;
    for (std::uint32_t block = 0; block < model->blocks(); ++block) {
      of_two.push_back(copy(model->gradients(block)));
    }
    model->step(one.tokens, one.targets, 1, true);
    std::vector<std::vector<float>> sum = of_two;
    for (std::uint32_t block = 0; block < model->blocks(); ++block) {
      const std::span<const float> added = model->gradients(block);
      for (std::size_t i = 0; i < sum[block].size(); ++i) sum[block][i] += added[i];
    }
    model->step(two.tokens, two.targets, 1, false);
    for (std::uint32_t block = 0; block < model->blocks(); ++block) {
      const std::span<const float> actual = model->gradients(block);
      for (std::size_t i = 0; i < sum[block].size(); ++i) {
        // One rounding each way; sums are of order 1 to 10.
        ASSERT_NEAR(actual[i], sum[block][i], 1e-4) << block << " " << i;
      }
    }
  }
}

TEST_F(Transformers, GradientIsTheSlopeOfTheLoss) {
  // Central difference along the gradient of each block: d(loss)/d(step) = |gradient|^2.
  for (const ModelConfig& config : {tiny_gpt2(), tiny_qwen3(), tiny_llama()}) {
    Random random;
    const Data data(random, config.vocab_size);
    for (std::uint32_t block = 0; block < config.layers + 2; ++block) {
      const auto model = make(config);
      model->step(data.tokens, data.targets, 1.0F / kTokens, true);
      std::vector<float> slope = copy(model->gradients(block));
      if (block == 0 && config.tied_head) {
        const std::span<const float> tied = model->tied_gradients();
        for (std::size_t i = 0; i < tied.size(); ++i) slope[i] += tied[i];
      }
      double norm = 0;
      for (const float value : slope)
        norm += static_cast<double>(value) * static_cast<double>(value);
      ASSERT_GT(norm, 0);
      // A step that changes the loss by about 0.02 each way.
      const double length = 0.02 / norm;
      const std::vector<float> start = model->parameters(block);
      double losses[2];
      for (const int side : {0, 1}) {
        std::vector<float> moved = start;
        for (std::size_t i = 0; i < moved.size(); ++i) {
          moved[i] +=
              static_cast<float>((side == 0 ? -length : length) * static_cast<double>(slope[i]));
        }
        model->set_parameters(block, moved);
        model->forward(data.tokens, Activations::recomputed);
        losses[side] = model->loss(data.targets, 1, true, false) / kTokens;
      }
      // Third-order terms and fp32 rounding of the loss (1e-6 of 4, over 0.04).
      EXPECT_NEAR((losses[1] - losses[0]) / (2 * length) / norm, 1.0, 0.02)
          << name_of(config.family) << " block " << block;
    }
  }
}

TEST_F(Transformers, LogitsOfTheLastPositionAreThoseOfAllPositions) {
  const ModelConfig config = tiny_gpt2();
  Random random;
  const Data data(random, config.vocab_size);
  const auto model = make(config);
  model->forward(data.tokens, Activations::recomputed);
  const std::vector<float> all = copy(model->logits(true));
  const std::span<const float> last = model->logits(false);
  for (std::size_t b = 0; b < kBatch.batch; ++b) {
    for (std::size_t i = 0; i < config.vocab_size; ++i) {
      EXPECT_NEAR(last[b * config.vocab_size + i],
                  all[((b + 1) * kBatch.sequence - 1) * config.vocab_size + i], 1e-5);
    }
  }
}

TEST_F(Transformers, LeavesNothingOfAWindowInAnother) {
  const ModelConfig config = tiny_llama();
  Random random;
  Data data(random, config.vocab_size);
  const auto model = make(config);
  model->forward(data.tokens, Activations::recomputed);
  const std::vector<float> before = copy(model->logits(true));
  data.tokens[kBatch.sequence + 5] = (data.tokens[kBatch.sequence + 5] + 1) % 61;
  model->forward(data.tokens, Activations::recomputed);
  const std::span<const float> after = model->logits(true);
  for (std::size_t t = 0; t < kTokens; ++t) {
    // Only that position and the later ones of its window may change.
    const bool may_change = t >= kBatch.sequence + 5U && t < 2U * kBatch.sequence;
    bool changed = false;
    for (std::size_t i = 0; i < config.vocab_size; ++i) {
      changed |= before[t * config.vocab_size + i] != after[t * config.vocab_size + i];
    }
    EXPECT_EQ(changed, may_change) << "position " << t;
  }
}

}  // namespace
}  // namespace spillway::model::transformer_test
