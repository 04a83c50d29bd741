// What of measuring matrix products needs no GPU: which there are, their operands, the choice, what
// is kept of it and which run starts with it.
#include "runtime/engine/machine/product_tuning.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "offload/host/host_backend.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/sealed_json.hpp"
#include "runtime/model/cuda/gemm/gemm_layout.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::product_tuning_test {
namespace {

using model::GemmOutput;
using model::GemmShape;
using model::cuda::GemmAlgorithm;
using model::cuda::GemmChoices;
using model::cuda::GemmTiming;

GemmAlgorithm algorithm(std::uint64_t word) { return {word, 1, 2, 3, 4, 5, 6, 7}; }

bool has(const std::vector<GemmShape>& shapes, const GemmShape& shape) {
  return std::ranges::find(shapes, shape) != shapes.end();
}

// --- which products

TEST(PlannedProducts, AreThoseOfALayerAndOfTheHeadEachOnce) {
  config::TrainOptions options = tiny_options();  // 2 windows of 16 tokens
  const auto shapes = planned_products(tiny_llama(7), options);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_EQ(std::ranges::count(shapes, shapes[i]), 1) << i;
  }
  const GemmOutput gradient = GemmOutput::gradient;
  // gate and up: 48 to 2 * 96; its input's and its weights' gradient; the head of 67 tokens, whose
  // rows begin at multiples of 8.
  EXPECT_TRUE(has(shapes, {.rows = 32, .columns = 192, .inner = 48, .transpose_b = true}));
  EXPECT_TRUE(has(shapes, {.rows = 32, .columns = 48, .inner = 192}));
  EXPECT_TRUE(has(
      shapes, {.rows = 192, .columns = 48, .inner = 32, .transpose_a = true, .output = gradient}));
  EXPECT_TRUE(has(shapes, {.rows = 32,
                           .columns = 67,
                           .inner = 48,
                           .transpose_b = true,
                           .output = GemmOutput::fp32,
                           .out_stride = 72}));
  EXPECT_EQ(shapes, planned_products(tiny_llama(2), options)) << "all layers are alike";
  options.device = config::DeviceKind::host;
  EXPECT_EQ(shapes, planned_products(tiny_llama(2), options)) << "they are a GPU's";
  options.micro_batch = 3;
  EXPECT_TRUE(
      has(planned_products(tiny_llama(), options), {.rows = 48, .columns = 48, .inner = 192}));
}

TEST(PlannedProducts, OfAModelInTilesAreTheTiles) {
  config::TrainOptions options = tiny_options();
  const auto whole = planned_products(tiny_llama(), options);
  options.operator_tile = 1024;
  const auto tiled = planned_products(tiny_llama(), options);
  EXPECT_FALSE(tiled.empty());
  EXPECT_NE(tiled, whole);
  for (const GemmShape& shape : tiled) EXPECT_NE(shape.columns, 192U);
}

// --- operands

class Operands : public testing::TestWithParam<DType> {
 protected:
  [[nodiscard]] float value(const std::byte* place) const {
    std::uint16_t bits = 0;
    if (GetParam() == DType::fp32) {
      float value = 0;
      std::memcpy(&value, place, sizeof value);
      return value;
    }
    std::memcpy(&bits, place, sizeof bits);
    return GetParam() == DType::bf16 ? from_bf16(bits) : from_fp16(bits);
  }
};

TEST_P(Operands, LieApartInAlignedMemoryOfTheStatedSize) {
  std::vector<GemmShape> shapes = planned_products(tiny_gpt2(), tiny_options());
  shapes.push_back({.rows = 5,
                    .columns = 7,
                    .inner = 11,
                    .bias = true,
                    .residual = true,
                    .a_stride = 13,
                    .b_stride = 9,
                    .out_stride = 8});
  const Bytes needed = ProductOperands::needed(shapes, GetParam());
  const auto backend =
      offload::make_host_backend({.device_capacity = needed, .pinned_capacity = 4_MiB});
  const auto stream = backend->make_stream("test");
  const ProductOperands operands(*backend, *stream, shapes, GetParam());
  EXPECT_EQ(backend->usage(offload::MemoryKind::device).high_water, needed);
  EXPECT_EQ(backend->usage(offload::MemoryKind::pinned).current, Bytes{});
  for (const GemmShape& shape : shapes) {
    const model::GemmArguments a = operands.arguments(shape);
    const std::uint64_t element = size_of(GetParam());
    const auto product = model::cuda::column_major(shape);
    EXPECT_GE(a.a.size(), product.right.columns * product.right.leading * element);
    EXPECT_GE(a.b.size(), product.left.columns * product.left.leading * element);
    EXPECT_GE(a.out.size(), product.result.columns * product.result.leading *
                                (product.fp32_result ? sizeof(float) : element));
    EXPECT_EQ(a.bias.size() >= shape.columns * element, shape.bias);
    EXPECT_EQ(!a.residual.empty(), shape.residual);
    std::vector<std::pair<const std::byte*, const std::byte*>> ranges;
    for (const model::ConstTensor& part : {a.a, a.b, a.bias, a.residual, model::ConstTensor(a.out),
                                           model::ConstTensor(a.workspace)}) {
      if (part.empty()) continue;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part.address()) % 256, 0U);
      ranges.emplace_back(part.address(), part.address() + part.size());
    }
    std::ranges::sort(ranges);
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      EXPECT_LE(ranges[i - 1].second, ranges[i].first);
    }
  }
}

TEST_P(Operands, HoldNormalNumbers) {
  const std::vector<GemmShape> shapes{{.rows = 1100, .columns = 3, .inner = 1000}};
  const auto backend =
      offload::make_host_backend({.device_capacity = 64_MiB, .pinned_capacity = 4_MiB});
  const auto stream = backend->make_stream("test");
  const ProductOperands operands(*backend, *stream, shapes, GetParam());
  const model::ConstTensor a = operands.arguments(shapes.front()).a;
  const std::size_t count = 1'100'000;
  double sum = 0;
  double squares = 0;
  std::size_t near_zero = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double x = static_cast<double>(value(a.address() + i * size_of(GetParam())));
    sum += x;
    squares += x * x;
    near_zero += std::abs(x) < 1e-4 ? 1U : 0U;
  }
  // Of 2^20 numbers with deviation 1/8 the mean is 0 to 6 deviations of 2^-10 / 8 and the variance
  // 1/64 to as many of 2^-10 * sqrt(2) / 64; 16 bits round by 2^-9. 6e-4 of them are below 1e-4.
  EXPECT_NEAR(sum / count, 0, 1e-3);
  EXPECT_NEAR(squares / count, 1.0 / 64, 3e-4);
  EXPECT_LT(near_zero, count / 500);
}

INSTANTIATE_TEST_SUITE_P(EveryDType, Operands,
                         testing::Values(DType::fp32, DType::bf16, DType::fp16),
                         [](const auto& c) { return std::string(name_of(c.param)); });

// --- the choice, and what is kept

class ProductTuning : public testing::Test {
 protected:
  TunedProduct tune(const std::string& key, const std::vector<GemmTiming>& timings,
                    MeasureWhat what = MeasureWhat::unknown) {
    MachineTuning known(file_);
    return tune_product({.rows = 2, .columns = 3, .inner = 4}, key, known, what, [&] {
      ++measured_;
      return timings;
    });
  }
  [[nodiscard]] std::optional<GemmAlgorithm> kept(const std::string& key) const {
    return MachineTuning(file_).products().find(key);
  }

  ScratchDirectory scratch_{"product-tuning"};
  std::filesystem::path file_ = scratch_.path() / "machine.json";
  int measured_ = 0;
};

TEST_F(ProductTuning, KeepsTheFastestAndMeasuresItOnce) {
  const TunedProduct first = tune("one", {{algorithm(1), 2.0}, {algorithm(2), 1.0}});
  EXPECT_FALSE(first.known);
  EXPECT_EQ(first.algorithms, 2U);
  EXPECT_EQ(first.first_milliseconds, 2);
  EXPECT_EQ(first.best_milliseconds, 1);
  EXPECT_EQ(first.gain(), 2);
  EXPECT_EQ(kept("one"), algorithm(2));
  const TunedProduct second = tune("one", {{algorithm(3), 1.0}});
  EXPECT_TRUE(second.known);
  EXPECT_EQ(second.gain(), 1);
  EXPECT_EQ(measured_, 1);
  EXPECT_EQ(kept("one"), algorithm(2));
  tune("two", {{algorithm(4), 1.0}});
  EXPECT_EQ(kept("one"), algorithm(2));
  EXPECT_EQ(kept("two"), algorithm(4));
}

TEST_F(ProductTuning, MeasuresAgainWhatItIsTo) {
  tune("one", {{algorithm(1), 1.0}});
  tune("two", {{algorithm(2), 1.0}});
  EXPECT_FALSE(tune("one", {{algorithm(3), 1.0}}, MeasureWhat::everything).known);
  EXPECT_EQ(kept("one"), algorithm(3));
  EXPECT_EQ(kept("two"), algorithm(2)) << "of another model, perhaps";
}

TEST_F(ProductTuning, KeepsNothingWhereTheLibraryHasNoAlgorithm) {
  const TunedProduct product = tune("one", {});
  EXPECT_EQ(product.algorithms, 0U);
  EXPECT_EQ(product.gain(), 1);
  EXPECT_EQ(kept("one"), std::nullopt);
  EXPECT_FALSE(tune("one", {{algorithm(1), 1.0}}).known);
}

TEST_F(ProductTuning, SurvivesWhenEverythingElseIsMeasuredAgain) {
  tune("one", {{algorithm(1), 1.0}});
  MachineTuning tuning(file_);
  tuning.forget();
  const auto& kernel = cpu_adam::kernels().front();
  EXPECT_EQ(tuning.prefetch(kernel, 2, [] { return std::size_t{128}; }), 128U);
  EXPECT_EQ(kept("one"), algorithm(1));
}

TEST_F(ProductTuning, IsLostWithADamagedFile) {
  tune("one", {{algorithm(1), 1.0}});
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) - 9);
  EXPECT_EQ(kept("one"), std::nullopt);
  EXPECT_FALSE(tune("one", {{algorithm(2), 1.0}}).known);
  EXPECT_EQ(kept("one"), algorithm(2));
}

TEST_F(ProductTuning, IsLostWhereItsTableIsMalformed) {
  tune("one", {{algorithm(1), 1.0}});
  nlohmann::json document = read_sealed_json(file_);
  document["products"]["algorithms"]["one"] = "12";
  write_sealed_json(file_, document);
  EXPECT_EQ(MachineTuning(file_).products().size(), 0U);
}

TEST_F(ProductTuning, IsEmptyInAFileFromBeforeThereWasAny) {
  const auto& kernel = cpu_adam::kernels().front();
  MachineTuning(file_).prefetch(kernel, 2, [] { return std::size_t{128}; });
  nlohmann::json document = read_sealed_json(file_);
  ASSERT_EQ(document.erase("products"), 1U);
  write_sealed_json(file_, document);
  MachineTuning tuning(file_);
  EXPECT_EQ(tuning.products().size(), 0U);
  EXPECT_EQ(tuning.prefetch(kernel, 2, [] { return std::size_t{512}; }), 128U) << "the rest stays";
}

TEST_F(ProductTuning, SaysThatItNeedsAGpu) {
  config::TrainOptions options = tiny_options();
  options.device = config::DeviceKind::host;
  MachineTuning known(file_);
  const auto shapes = planned_products(tiny_llama(), options);
  try {
    tune_products({.options = options, .shapes = shapes}, known,
                  [](const TunedProduct&) { ADD_FAILURE() << "measured on the host"; });
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_THAT(error.what(), testing::HasSubstr("--device cuda"));
  }
}

// --- which run starts with it

class RunProducts : public testing::Test {
 protected:
  static GemmChoices table(std::initializer_list<std::pair<std::string, std::uint64_t>> list) {
    GemmChoices choices;
    for (const auto& [key, word] : list) choices.set(key, algorithm(word));
    return choices;
  }
  static DeviceRecord record(const GemmChoices& choices) {
    return {.name = "A GPU",
            .libraries = "cuBLASLt 130100",
            .algorithms = choices.to_json(),
            .attention = {}};
  }

  GemmChoices measured_ = table({{"one", 1}, {"two", 2}});
};

TEST_F(RunProducts, OfANewRunAreThoseMeasured) {
  EXPECT_EQ(choose_products({.measured = measured_}), measured_);
}

TEST_F(RunProducts, OfAResumedRunAreItsOwnAlone) {
  const DeviceRecord own = record(table({{"one", 7}}));
  EXPECT_EQ(choose_products({.resumed = &own, .measured = measured_}), table({{"one", 7}}));
  const DeviceRecord host{.name = "host", .libraries = {}, .algorithms = {}, .attention = {}};
  EXPECT_EQ(choose_products({.resumed = &host, .measured = measured_}), GemmChoices());
}

TEST_F(RunProducts, OfARunThatGoesOnFromAnotherAreTheOthersFirst) {
  const DeviceRecord origin = record(table({{"two", 8}, {"three", 9}}));
  EXPECT_EQ(choose_products({.continued = &origin, .measured = measured_}),
            table({{"one", 1}, {"two", 8}, {"three", 9}}));
}

}  // namespace
}  // namespace spillway::engine::product_tuning_test
