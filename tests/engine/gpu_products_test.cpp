// Algorithms of matrix products, measured on a GPU: once, and taken by a run that starts later.
#include <gtest/gtest.h>

#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/machine/product_tuning.hpp"
#include "tests/engine/device_under_test.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::gpu_products_test {
namespace {

using model::cuda::GemmChoices;

std::uint32_t context() { return device_is_emulated() ? 16 : 256; }

/// Wide enough for several algorithms of each product.
model::ModelConfig small_model() {
  const bool emulated = device_is_emulated();
  model::ModelConfig config = tiny_llama();
  config.vocab_size = emulated ? 64 : 1024;
  config.max_context = context();
  config.heads = config.kv_heads = emulated ? 1 : 8;
  config.head_dim = 64;
  config.width = config.ffn_width = config.heads * config.head_dim;
  return config;
}

class GpuProducts : public testing::TestWithParam<DType> {
 protected:
  GpuProducts() {
    options_.compute = GetParam();
    options_.context = context();
    options_.state_format = GetParam() == DType::bf16 ? StateFormat::split : StateFormat::fp32;
    options_.state_home = config::StateHome::device;
  }
  std::vector<TunedProduct> tune() const {
    MachineTuning known(file_);
    std::vector<TunedProduct> products;
    const auto shapes = planned_products(small_model(), options_);
    tune_products({.options = options_, .shapes = shapes}, known,
                  [&](const TunedProduct& product) { products.push_back(product); });
    return products;
  }

  config::TrainOptions options_ = tiny_options();
  ScratchDirectory scratch_{"gpu-products"};
  std::filesystem::path file_ = scratch_.path() / "machine.json";
};

TEST_P(GpuProducts, AreMeasuredOnceAndTakenByARunThatStartsLater) {
  const std::vector<TunedProduct> measured = tune();
  for (const TunedProduct& product : measured) {
    EXPECT_GT(product.algorithms, 0U) << product.key;
    EXPECT_GT(product.best_milliseconds, 0) << product.key;
    EXPECT_LE(product.best_milliseconds, product.first_milliseconds) << product.key;
  }
  for (const TunedProduct& product : tune()) EXPECT_TRUE(product.known) << product.key;
  const GemmChoices table = MachineTuning(file_).products();
  EXPECT_EQ(table.size(), measured.size());
  const ModelRuntime model = make_model_runtime(small_model(), options_, {.products = table});
  const GemmChoices used = products_of(record_of(options_, *model.ops));
  EXPECT_EQ(used.common(table), table.size());
}

TEST_P(GpuProducts, TrainAsTheLibrarysFirstProposalsDo) {
  constexpr int kSteps = 5;
  TrainingHarness harness(small_model());
  const Outcome first = harness.train(options_, kSteps);
  tune();
  harness.products = MachineTuning(file_).products();
  const Outcome best = harness.train(options_, kSteps);
  EXPECT_EQ(harness.train(options_, kSteps), best) << "the same run again";
  // Sums in another order, as between a GPU and the host.
  const double bound = GetParam() == DType::fp32 ? 1e-4 : 1e-2;
  for (std::size_t step = 0; step < best.losses.size(); ++step) {
    EXPECT_NEAR(best.losses[step], first.losses[step], bound * first.losses[step]) << step;
  }
}

TEST_P(GpuProducts, ThatDoNotFitAreRefusedBeforeAnyIsMeasured) {
  options_.device_memory = 1_MiB;
  try {
    tune();
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
  }
  EXPECT_FALSE(std::filesystem::exists(file_));
}

INSTANTIATE_TEST_SUITE_P(Compute, GpuProducts, testing::Values(DType::fp32, DType::bf16),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace spillway::engine::gpu_products_test
