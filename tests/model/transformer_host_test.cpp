// Properties of the whole model on the host: the same bits from every instruction set; chunks,
// memory, operations counted, nothing allocated, and what is refused.
#include "runtime/base/error.hpp"
#include "runtime/model/host/kernels.hpp"
#include "tests/model/tiny_models.hpp"
#include "tests/support/allocation_counter.hpp"

namespace spillway::model::transformer_host_test {
namespace {

class HostTransformerBits : public testing::TestWithParam<DType> {};

TEST_P(HostTransformerBits, AreTheSameFromEveryInstructionSet) {
  const ModelConfig config = tiny_qwen3();
  Random random;
  const Data data(random, config.vocab_size);
  const auto reference = make_model(
      config, host::make_ops({.compute_threads = 2, .compute = GetParam(), .kernels = "portable"}));
  const double loss = reference->step(data.tokens, data.targets, 1.0F / kTokens, true);
  for (const host::Kernels* kernels : host::all_kernels()) {
    if (!kernels->supported()) continue;
    const auto model = make_model(
        config,
        host::make_ops({.compute_threads = 2, .compute = GetParam(), .kernels = kernels->name}));
    EXPECT_EQ(model->step(data.tokens, data.targets, 1.0F / kTokens, true), loss);
    EXPECT_EQ(bits(*model), bits(*reference)) << kernels->name;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryDType, HostTransformerBits,
                         testing::Values(DType::fp32, DType::bf16, DType::fp16),
                         [](const auto& c) { return std::string(name_of(c.param)); });

TEST(HostTransformer, SplitsALargeVocabularyIntoChunksOfTokens) {
  ModelConfig config = tiny_gpt2();
  config.vocab_size = 131072 + 3;  // 32 MiB of logits hold 64 tokens of these
  config.max_context = 100;
  const auto ops = host::make_ops({.compute_threads = 2});
  const Transformer model(config, {.batch = 1, .sequence = 100}, DType::fp32, *ops);
  const std::uint64_t chunk = 64ULL * config.vocab_size * sizeof(float);
  EXPECT_GE(model.workspace_bytes().value(), chunk);
  EXPECT_LT(model.workspace_bytes().value(), 2 * chunk);
}

TEST(HostTransformer, AddsUpTheGradientsOfItsChunks) {
  ModelConfig config = tiny_gpt2();
  config.vocab_size = 70'000;  // 32 MiB of logits hold 64 tokens of these
  config.max_context = 50;
  constexpr BatchShape kTwoChunks{.batch = 2, .sequence = 50};
  const auto model = make_model(config, host::make_ops({.compute_threads = 2}), kTwoChunks);
  Random random;
  std::vector<std::int32_t> tokens, targets;
  for (int i = 0; i < 100; ++i) {
    tokens.push_back(random.below(config.vocab_size));
    targets.push_back(random.below(config.vocab_size));
  }
  /// The gradient of the losses of these tokens alone.
  const auto gradient_of = [&](std::size_t first, std::size_t end) {
    std::vector<std::int32_t> counted(targets.size(), -1);
    for (std::size_t i = first; i < end; ++i) counted[i] = targets[i];
    model->step(tokens, counted, 1, true);
    return std::vector<float>(model->tied_gradients().begin(), model->tied_gradients().end());
  };
  const std::vector<float> all = gradient_of(0, 100);
  const std::vector<float> one = gradient_of(0, 64);
  const std::vector<float> other = gradient_of(64, 100);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_NEAR(all[i], one[i] + other[i], 1e-5) << i;
  }
  EXPECT_GT(*std::ranges::max_element(one), 0.1F);
  EXPECT_GT(*std::ranges::max_element(other), 0.1F);
}

TEST(HostTransformer, MemoryOfALayerDoesNotDependOnTheirNumber) {
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

TEST(HostTransformer, CountsTheFlopsOfItsProducts) {
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

TEST(HostTransformer, AllocatesNothingAfterConstruction) {
  if (!test_support::AllocationCounter::works()) GTEST_SKIP() << "a sanitizer owns operator new";
  for (const DType compute : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const ModelConfig& config : {tiny_gpt2(), tiny_qwen3()}) {
      Random random;
      const Data data(random, config.vocab_size);
      const auto model =
          make_model(config, host::make_ops({.compute_threads = 2, .compute = compute}));
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

TEST(HostTransformer, RefusesShapesAndDtypesThatItCannotRun) {
  const ModelConfig config = tiny_gpt2();
  const auto ops = host::make_ops({.compute_threads = 1});
  EXPECT_THROW(Transformer(config, {.batch = 1, .sequence = 41}, DType::fp32, *ops), Error);
  EXPECT_THROW(Transformer(config, {.batch = 0, .sequence = 4}, DType::fp32, *ops), Error);
  EXPECT_THROW(Transformer(config, kBatch, DType::bf16, *ops), Error);
  EXPECT_THROW((void)host::make_ops({.compute_threads = 0}), Error);
  EXPECT_THROW((void)host::make_ops({.compute_threads = 1, .kernels = "avx1024"}), Error);
}

}  // namespace
}  // namespace spillway::model::transformer_host_test
