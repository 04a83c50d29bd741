// Properties of the whole model that no comparison with a peer shows: the same bits from the same
// inputs, from recomputation and from every instruction set; accumulation; chunks; memory.
#include "runtime/base/error.hpp"
#include "tests/model/ops_support.hpp"
#include "tests/support/allocation_counter.hpp"

namespace spillway::model {
namespace {

ModelConfig tiny_gpt2() {
  ModelConfig config;
  config.family = Family::gpt2;
  config.vocab_size = 61;
  config.max_context = 40;
  config.layers = 2;
  config.width = 24;
  config.heads = config.kv_heads = 3;
  config.head_dim = 8;
  config.ffn_width = 50;
  return config;
}

ModelConfig tiny_qwen3() {
  ModelConfig config = tiny_gpt2();
  config.family = Family::qwen3;
  config.activation = Activation::silu;
  config.heads = 4;
  config.kv_heads = 2;
  config.qk_norm = true;
  config.tied_head = false;
  return config;
}

ModelConfig tiny_llama() {
  ModelConfig config = tiny_qwen3();
  config.family = Family::llama;
  config.qk_norm = false;
  config.heads = config.kv_heads = 3;
  return config;
}

constexpr BatchShape kBatch{.batch = 3, .sequence = 19};
constexpr std::size_t kTokens = 57;

struct Data {
  std::vector<std::int32_t> tokens, targets;
  Data(Random& random, std::uint32_t vocabulary) {
    for (std::size_t i = 0; i < kTokens; ++i) {
      tokens.push_back(random.below(vocabulary));
      targets.push_back(random.below(vocabulary));
    }
  }
};

std::unique_ptr<ModelHarness> make_model(const ModelConfig& config,
                                         const host::HostOpsOptions& options) {
  auto model = std::make_unique<ModelHarness>(config, kBatch, options);
  Random random;
  for (std::uint32_t block = 0; block < model->blocks(); ++block) {
    std::vector<float> values;
    for (const ParameterTensor& tensor : model->layout().blocks[block].tensors) {
      for (std::uint64_t i = 0; i < tensor.count.value(); ++i) {
        values.push_back(random.normal(0.2F) + (tensor.initial == Initial::ones ? 1.0F : 0.0F));
      }
    }
    model->set_parameters(block, values);
  }
  return model;
}

std::vector<std::uint32_t> bits(ModelHarness& model) {
  std::vector<std::uint32_t> result;
  const auto append = [&](std::span<float> values) {
    for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  };
  for (std::uint32_t block = 0; block < model.blocks(); ++block) append(model.gradients(block));
  return result;
}

class TransformerBits : public testing::TestWithParam<DType> {};

TEST_P(TransformerBits, AreTheSameFromEveryCallAndFromRecomputation) {
  for (const ModelConfig& config : {tiny_gpt2(), tiny_qwen3(), tiny_llama()}) {
    Random random;
    const Data data(random, config.vocab_size);
    const auto model = make_model(config, {.compute_threads = 2, .compute = GetParam()});
    const double loss = model->step(data.tokens, data.targets, 1.0F / kTokens, true);
    const std::vector<std::uint32_t> first = bits(*model);
    EXPECT_TRUE(std::isfinite(loss));
    EXPECT_EQ(model->step(data.tokens, data.targets, 1.0F / kTokens, true), loss);
    EXPECT_EQ(bits(*model), first);
    EXPECT_EQ(model->step(data.tokens, data.targets, 1.0F / kTokens, true, Activations::recomputed),
              loss);
    EXPECT_EQ(bits(*model), first);
    const auto other = make_model(config, {.compute_threads = 2, .compute = GetParam()});
    EXPECT_EQ(other->step(data.tokens, data.targets, 1.0F / kTokens, true), loss);
    EXPECT_EQ(bits(*other), first) << "from another instance";
  }
}

TEST_P(TransformerBits, AreTheSameFromEveryInstructionSet) {
  const ModelConfig config = tiny_qwen3();
  Random random;
  const Data data(random, config.vocab_size);
  const auto reference =
      make_model(config, {.compute_threads = 2, .compute = GetParam(), .kernels = "portable"});
  const double loss = reference->step(data.tokens, data.targets, 1.0F / kTokens, true);
  for (const host::Kernels* kernels : host::all_kernels()) {
    if (!kernels->supported()) continue;
    const auto model =
        make_model(config, {.compute_threads = 2, .compute = GetParam(), .kernels = kernels->name});
    EXPECT_EQ(model->step(data.tokens, data.targets, 1.0F / kTokens, true), loss);
    EXPECT_EQ(bits(*model), bits(*reference)) << kernels->name;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryDType, TransformerBits,
                         testing::Values(DType::fp32, DType::bf16, DType::fp16),
                         [](const auto& c) { return std::string(name_of(c.param)); });

TEST(Transformer, AddsTheGradientsOfMicroBatches) {
  for (const ModelConfig& config : {tiny_gpt2(), tiny_qwen3()}) {
    Random random;
    const Data one(random, config.vocab_size);
    const Data two(random, config.vocab_size);
    const auto model = make_model(config, {.compute_threads = 2});
    model->step(two.tokens, two.targets, 1, true);
    std::vector<std::vector<float>> of_two;
    for (std::uint32_t block = 0; block < model->blocks(); ++block) {
      of_two.emplace_back(model->gradients(block).begin(), model->gradients(block).end());
    }
    model->step(one.tokens, one.targets, 1, true);
    std::vector<std::vector<float>> sum = of_two;
    for (std::uint32_t block = 0; block < model->blocks(); ++block) {
      for (std::size_t i = 0; i < sum[block].size(); ++i) {
        sum[block][i] += model->gradients(block)[i];
      }
    }
    model->step(two.tokens, two.targets, 1, false);
    for (std::uint32_t block = 0; block < model->blocks(); ++block) {
      for (std::size_t i = 0; i < sum[block].size(); ++i) {
        // One rounding each way; sums are of order 1 to 10.
        ASSERT_NEAR(model->gradients(block)[i], sum[block][i], 1e-4) << block << " " << i;
      }
    }
  }
}

TEST(Transformer, GradientIsTheSlopeOfTheLoss) {
  // Central difference along the gradient of each block: d(loss)/d(step) = |gradient|^2.
  for (const ModelConfig& config : {tiny_gpt2(), tiny_qwen3(), tiny_llama()}) {
    Random random;
    const Data data(random, config.vocab_size);
    for (std::uint32_t block = 0; block < config.layers + 2; ++block) {
      const auto model = make_model(config, {.compute_threads = 1});
      model->step(data.tokens, data.targets, 1.0F / kTokens, true);
      std::vector<float> slope(model->gradients(block).begin(), model->gradients(block).end());
      if (block == 0 && config.tied_head) {
        for (std::size_t i = 0; i < model->tied_gradients().size(); ++i) {
          slope[i] += model->tied_gradients()[i];
        }
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

TEST(Transformer, LogitsOfTheLastPositionAreThoseOfAllPositions) {
  const ModelConfig config = tiny_gpt2();
  Random random;
  const Data data(random, config.vocab_size);
  const auto model = make_model(config, {.compute_threads = 2});
  model->forward(data.tokens, Activations::recomputed);
  const std::vector<float> all(model->logits(true).begin(), model->logits(true).end());
  const std::span<const float> last = model->logits(false);
  for (std::size_t b = 0; b < kBatch.batch; ++b) {
    for (std::size_t i = 0; i < config.vocab_size; ++i) {
      EXPECT_NEAR(last[b * config.vocab_size + i],
                  all[((b + 1) * kBatch.sequence - 1) * config.vocab_size + i], 1e-5);
    }
  }
}

TEST(Transformer, LeavesNothingOfAWindowInAnother) {
  const ModelConfig config = tiny_llama();
  Random random;
  Data data(random, config.vocab_size);
  const auto model = make_model(config, {.compute_threads = 2});
  model->forward(data.tokens, Activations::recomputed);
  const std::vector<float> before(model->logits(true).begin(), model->logits(true).end());
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

TEST(Transformer, SplitsALargeVocabularyIntoChunksOfTokens) {
  ModelConfig config = tiny_gpt2();
  config.vocab_size = 131072 + 3;  // 32 MiB of logits hold 64 tokens of these
  config.max_context = 100;
  const auto ops = host::make_ops({.compute_threads = 2});
  const Transformer model(config, {.batch = 1, .sequence = 100}, DType::fp32, *ops);
  const std::uint64_t chunk = 64ULL * config.vocab_size * sizeof(float);
  EXPECT_GE(model.workspace_bytes().value(), chunk);
  EXPECT_LT(model.workspace_bytes().value(), 2 * chunk);
}

TEST(Transformer, MemoryOfALayerDoesNotDependOnTheirNumber) {
  ModelConfig config = tiny_gpt2();
  const auto ops = host::make_ops({.compute_threads = 2});
  const Transformer few(config, kBatch, DType::fp32, *ops);
  config.layers = 8;
  const Transformer many(config, kBatch, DType::fp32, *ops);
  EXPECT_EQ(few.workspace_bytes(), many.workspace_bytes());
  EXPECT_EQ(few.saved_bytes(1), many.saved_bytes(8));
  EXPECT_EQ(many.saved_bytes(0), Bytes{});
  EXPECT_EQ(many.saved_bytes(9), Bytes{});
}

TEST(Transformer, CountsTheFlopsOfItsProducts) {
  const ModelConfig config = tiny_gpt2();
  const auto ops = host::make_ops({.compute_threads = 1});
  const Transformer model(config, kBatch, DType::fp32, *ops);
  const double linear = 2.0 * kTokens * (24 * 72 + 24 * 24 + 2 * 24 * 50);
  const double attention = 4.0 * 24 * 3 * 19 * 20 / 2;
  EXPECT_DOUBLE_EQ(model.forward_flops(1), linear + attention);
  EXPECT_DOUBLE_EQ(model.backward_flops(1), 2 * linear + 2.5 * attention);
  EXPECT_DOUBLE_EQ(model.forward_flops(3), 2.0 * kTokens * 24 * 61);
  EXPECT_DOUBLE_EQ(model.backward_flops(3), 4.0 * kTokens * 24 * 61);
  EXPECT_DOUBLE_EQ(model.forward_flops(0), 0);
}

TEST(Transformer, AllocatesNothingAfterConstruction) {
  if (!test_support::AllocationCounter::works()) GTEST_SKIP() << "a sanitizer owns operator new";
  for (const DType compute : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const ModelConfig& config : {tiny_gpt2(), tiny_qwen3()}) {
      Random random;
      const Data data(random, config.vocab_size);
      const auto model = make_model(config, {.compute_threads = 2, .compute = compute});
      const test_support::AllocationCounter counter;
      model->step(data.tokens, data.targets, 1, true);
      model->step(data.tokens, data.targets, 1, false, Activations::recomputed);
      model->logits(true);
      model->logits(false);
      EXPECT_EQ(counter.allocations(), 0);
      const auto probe = std::make_unique<int>(1);
      EXPECT_EQ(counter.allocations(), 1) << "the counter counts " << *probe;
    }
  }
}

TEST(Transformer, RefusesShapesAndDtypesThatItCannotRun) {
  const ModelConfig config = tiny_gpt2();
  const auto ops = host::make_ops({.compute_threads = 1});
  EXPECT_THROW(Transformer(config, {.batch = 1, .sequence = 41}, DType::fp32, *ops), Error);
  EXPECT_THROW(Transformer(config, {.batch = 0, .sequence = 4}, DType::fp32, *ops), Error);
  EXPECT_THROW(Transformer(config, kBatch, DType::bf16, *ops), Error);
  EXPECT_THROW((void)host::make_ops({.compute_threads = 0}), Error);
  EXPECT_THROW((void)host::make_ops({.compute_threads = 1, .kernels = "avx1024"}), Error);
}

}  // namespace
}  // namespace spillway::model
