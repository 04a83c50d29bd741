// A whole model whose operations are the CUDA kernels' bodies: losses and gradients are the host's,
// from the workspace that the model asks those operations for.
#include "tests/model/cuda_bodies_support.hpp"
#include "tests/model/tiled_harness.hpp"
#include "tests/model/tiny_models.hpp"

namespace spillway::model::cuda_bodies_model_test {
namespace {

ModelConfig config_of(Family family) {
  ModelConfig config;
  config.family = family;
  config.vocab_size = 61;
  config.max_context = 40;
  config.layers = 2;
  config.width = 24;
  config.heads = 4;
  config.kv_heads = 4;
  config.head_dim = 6;
  config.ffn_width = 40;
  if (family == Family::gpt2) return config;
  config.activation = Activation::silu;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.qk_norm = family == Family::qwen3;
  config.tied_head = family == Family::qwen3;
  return config;
}

std::unique_ptr<ModelHarness> stepped(const ModelConfig& config, std::unique_ptr<Ops> ops,
                                      std::vector<double>& losses) {
  auto model = make_model(config, std::move(ops));
  Random random;
  for (const bool first : {true, false}) {
    const Data data(random, config.vocab_size);
    losses.push_back(model->step(data.tokens, data.targets, 1.0F / kTokens, first));
  }
  return model;
}

class CudaBodiesModel : public testing::TestWithParam<Family> {};

/// 1e-5 of a block's largest gradient: fp32 sums in another order, two layers deep.
TEST_P(CudaBodiesModel, HasTheLossesAndGradientsOfTheHost) {
  const ModelConfig config = config_of(GetParam());
  std::vector<double> expected, actual;
  const auto host = stepped(config, host::make_ops({.compute = DType::fp32}), expected);
  const auto own =
      stepped(config, std::make_unique<SerialOps>(DType::fp32, Order::backward), actual);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 1e-6 * expected[i]);
  }
  for (std::uint32_t block = 0; block < host->blocks(); ++block) {
    double largest = 0;
    for (const float value : host->gradients(block)) {
      largest = std::max(largest, std::fabs(static_cast<double>(value)));
    }
    for (std::size_t i = 0; i < host->gradients(block).size(); ++i) {
      ASSERT_NEAR(static_cast<double>(own->gradients(block)[i]),
                  static_cast<double>(host->gradients(block)[i]), 1e-5 * largest)
          << "block " << block << ", element " << i << ", seed " << Random::seed();
    }
  }
}

TEST(CudaBodiesTiledModel, HasTheLossesAndGradientsOfTheHost) {
  const ModelConfig config = config_of(Family::llama);
  std::vector<double> ignored;
  const auto whole = stepped(config, host::make_ops({.compute = DType::fp32}), ignored);
  Random random;
  const Data data(random, config.vocab_size);
  for (const std::uint64_t tile : {64U, 500U, 100'000U}) {
    TiledHarness host(config, kBatch, host::make_ops({.compute = DType::fp32}), tile);
    TiledHarness own(config, kBatch, std::make_unique<SerialOps>(DType::fp32, Order::backward),
                     tile);
    host.copy_parameters(*whole);
    own.copy_parameters(*whole);
    const double expected = host.step(data.tokens, data.targets, 1.0F / kTokens, true);
    EXPECT_NEAR(own.step(data.tokens, data.targets, 1.0F / kTokens, true), expected,
                1e-6 * expected);
    const auto actual = own.gradients();
    for (const auto& [name, gradient] : host.gradients()) {
      double largest = 0;
      for (const float value : gradient) {
        largest = std::max(largest, std::fabs(static_cast<double>(value)));
      }
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        ASSERT_NEAR(static_cast<double>(actual.at(name)[i]), static_cast<double>(gradient[i]),
                    1e-5 * largest)
            << name << ", element " << i << ", tiles of " << tile << ", seed " << Random::seed();
      }
    }
  }
}

/// Attention of these models is the host's. Of one token it passes on the values: a softmax over a
/// single key is 1.
TEST(HostAttention, KeepsThePlansOfTwoShapesApart) {
  const std::vector<std::vector<float>> values{{0.5F, -2}, {1, 3, -0.25F}};
  const auto ops = host::make_ops({.compute = DType::fp32});
  std::vector<AttentionPlan> plans;
  for (const std::vector<float>& of_head : values) {
    plans.push_back(ops->plan_attention({.batch = 1,
                                         .sequence = 1,
                                         .heads = 1,
                                         .kv_heads = 1,
                                         .head_dim = static_cast<std::uint32_t>(of_head.size())}));
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Operand head(values[i], DType::fp32);
    const HeadRows<ConstTensor> rows{head.device(), values[i].size()};
    const TestMemory out(values[i].size() * sizeof(float));
    const TestMemory log_sum(sizeof(float));
    const TestMemory space(plans[i].workspace.value());
    ops->attention_forward(plans[i], {.q = rows,
                                      .k = rows,
                                      .v = rows,
                                      .out = {out.device(), values[i].size()},
                                      .log_sum = log_sum.device().as<float>(),
                                      .workspace = space.device()});
    EXPECT_THAT(decode(out, DType::fp32), testing::Pointwise(testing::FloatEq(), values[i]));
  }
}

std::string name_of_family(const testing::TestParamInfo<Family>& family) {
  switch (family.param) {
    case Family::gpt2: return "gpt2";
    case Family::llama: return "llama";
    default: return "qwen3";
  }
}

INSTANTIATE_TEST_SUITE_P(Serial, CudaBodiesModel,
                         testing::Values(Family::gpt2, Family::llama, Family::qwen3),
                         name_of_family);

}  // namespace
}  // namespace spillway::model::cuda_bodies_model_test
