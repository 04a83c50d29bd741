// Forecasts of trainers: their bytes against closed forms, against what disks and devices then
// move, and against the least memory in which the trainer can be made.
#include "runtime/engine/embedded_forecast.hpp"

#include <gtest/gtest.h>

#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/plan/needs.hpp"
#include "tests/engine/counting_engine.hpp"
#include "tests/engine/embedded_fixture.hpp"

namespace spillway::engine::embedded_forecast_test {
namespace {

constexpr std::uint32_t kUnits = 6;
constexpr std::uint64_t kMatrix = 8 * kLeafParameters;  // no leaf is padded
constexpr std::uint64_t kVector = kLeafParameters;

/// One parameter of no unit, and units of a matrix and a vector each, of two groups.
class EmbeddedForecastTest : public testing::Test {
 protected:
  explicit EmbeddedForecastTest() {
    values_.push_back(normal(2 * kLeafParameters, 1));
    for (std::uint32_t unit = 0; unit < kUnits; ++unit) {
      values_.push_back(normal(kMatrix, 10 + unit));
      values_.push_back(normal(kVector, 20 + unit));
    }
    for (const Tensor& tensor : values_) {
      narrow_.push_back(in_bf16(tensor));
      elements_ += static_cast<double>(tensor.size());
    }
  }

  enum class Values : std::uint8_t { none, given };
  [[nodiscard]] std::vector<EmbeddedParameter> parameters(const EmbeddedOptions& options,
                                                          Values values) const {
    std::vector<EmbeddedParameter> list;
    for (std::uint32_t i = 0; i < values_.size(); ++i) {
      EmbeddedParameter& parameter = list.emplace_back();
      parameter.name = std::to_string(i);
      parameter.elements = values_[i].size();
      parameter.group = i % 2 == 0 && i > 0 ? 1 : 0;
      if (options.device_memory && i > 0) parameter.unit = (i - 1) / 2;
      if (values == Values::none) continue;
      parameter.values =
          options.dtype == DType::fp32 ? bytes_of(values_[i]).data() : narrow_[i].data();
    }
    return list;
  }

  [[nodiscard]] EmbeddedForecast forecast(const EmbeddedOptions& options) const {
    return {options, parameters(options, Values::none), {}};
  }

  void give(EmbeddedTrainer& trainer, std::uint32_t parameter) const {
    trainer.add_gradient(parameter, trainer.options().dtype == DType::fp32
                                        ? bytes_of(values_[parameter])
                                        : std::span<const std::byte>(narrow_[parameter]));
  }

  void step(EmbeddedTrainer& trainer) const {
    const EmbeddedOptions& options = trainer.options();
    for (std::uint32_t pass = 0; pass < options.gradients_per_step; ++pass) {
      for (std::uint32_t unit = 0; options.device_memory && unit < kUnits; ++unit) {
        trainer.enter(unit, EmbeddedPass::forward);
        trainer.leave(unit);
      }
      for (std::uint32_t unit = kUnits; unit-- > 0;) {
        if (options.device_memory) trainer.enter(unit, EmbeddedPass::backward);
        give(trainer, 2 * unit + 2);
        give(trainer, 2 * unit + 1);
        if (options.device_memory) trainer.leave(unit);
      }
      give(trainer, 0);
    }
    trainer.step({.max_norm = 1});
  }

  [[nodiscard]] static double total(const EmbeddedForecast& forecast, plan::Tier tier) {
    return static_cast<double>(plan::total(forecast.memory(), tier).value());
  }

  ScratchDirectory directory_{"forecast"};
  std::vector<Tensor> values_;
  std::vector<std::vector<std::byte>> narrow_;
  double elements_ = 0;
};

TEST_F(EmbeddedForecastTest, MemoryIsThatOfClosedForms) {
  struct Case {
    DType dtype;
    StateFormat format;
    std::uint32_t gradients;
    double state, rest;  // bytes a parameter: of state; of values and gradients
  };
  for (const Case& each : {Case{DType::fp32, StateFormat::fp32, 1, 12, 4 + 4},
                           Case{DType::bf16, StateFormat::fp32, 1, 12, 2 + 2},
                           Case{DType::bf16, StateFormat::split, 1, 10, 2 + 2},
                           Case{DType::bf16, StateFormat::bf16, 1, 6, 2 + 2},
                           Case{DType::bf16, StateFormat::split, 0, 10, 2 + 4},
                           Case{DType::bf16, StateFormat::split, 4, 10, 2 + 4}}) {
    EmbeddedOptions options = options_for(each.dtype);
    options.state_format = each.format;
    options.gradients_per_step = each.gradients;
    const EmbeddedForecast here = forecast(options);
    EXPECT_EQ(total(here, plan::Tier::nvme), 0);
    // Beside it: a tile that carries state to checkpoints, and sums of leaves.
    const double tile = 2.0 * kLeafParameters * 16;
    EXPECT_GE(total(here, plan::Tier::host), elements_ * (each.state + each.rest));
    EXPECT_LE(total(here, plan::Tier::host), elements_ * (each.state + each.rest) + 2 * tile);
    options.nvme = {directory_.path()};
    const EmbeddedForecast there = forecast(options);
    EXPECT_GE(total(there, plan::Tier::host), elements_ * each.rest);
    EXPECT_LE(total(there, plan::Tier::host), elements_ * each.rest + 6 * tile);
    // Two slots of each tile, which hold 16-bit parameters too.
    const double slot = each.state + (each.dtype == DType::fp32 ? 0 : 2);
    EXPECT_GE(total(there, plan::Tier::nvme), 2 * elements_ * each.state);
    EXPECT_LE(total(there, plan::Tier::nvme), 2 * elements_ * slot * 1.2);
  }
}

TEST_F(EmbeddedForecastTest, TheTrainerIsMadeInItsMemoryAndInNoByteLess) {
  for (const bool on_disk : {false, true}) {
    for (const std::uint32_t gradients : {1U, 2U}) {
      for (const bool streams : {false, true}) {
        EmbeddedOptions options = options_for(DType::bf16);
        options.gradients_per_step = gradients;
        if (on_disk) options.nvme = {directory_.path() / "swap"};
        if (streams) options.device_memory = 1_MiB;
        const EmbeddedForecast before = forecast(options);
        const Bytes host = plan::total(before.memory(), plan::Tier::host) +
                           plan::total(before.memory(), plan::Tier::device);
        options.host_memory = host - 1_B;
        const auto given = parameters(options, Values::given);
        const std::optional<std::string> refusal = forecast(options).refusal();
        try {
          const EmbeddedTrainer trainer(options, given);
          ADD_FAILURE() << "made with a byte less than its forecast";
        } catch (const Error& error) {
          EXPECT_EQ(refusal, error.what());
        }
        options.host_memory = host;
        EXPECT_EQ(forecast(options).refusal(), std::nullopt);
        EmbeddedTrainer trainer(options, given);
        step(trainer);
      }
    }
  }
}

TEST_F(EmbeddedForecastTest, TrafficIsThatOfStepsThatFollow) {
  for (const bool defers : {false, true}) {
    for (const std::uint32_t gradients : {1U, 3U}) {
      for (const std::optional<Bytes> device : {std::optional<Bytes>{}, std::optional(180_KiB),
                                                std::optional(300_KiB), std::optional(2_MiB)}) {
        EmbeddedOptions options = options_for(DType::bf16);
        options.gradients_per_step = gradients;
        options.defers_updates = defers;
        options.device_memory = device;
        options.nvme = {directory_.path() / "swap"};
        CountingEngine::Moved moved;
        options.adapt = [&moved](auto engine, const auto&) {
          return std::make_unique<CountingEngine>(std::move(engine), moved);
        };
        const EmbeddedTraffic expected = forecast(options).traffic();
        EmbeddedTrainer trainer(options, parameters(options, Values::given));
        for (int i = 0; i < 3; ++i) step(trainer);
        trainer.wait();
        const Bytes before = trainer.use().uploaded;
        const std::uint64_t read = moved.read, written = moved.written;
        constexpr int kSteps = 4;
        for (int i = 0; i < kSteps; ++i) step(trainer);
        trainer.wait();
        SCOPED_TRACE(testing::Message()
                     << defers << ' ' << gradients << ' ' << device.value_or(Bytes{}).value());
        // A wait for a deferred update ends before the plan, which reads ahead for the next one.
        const double ahead = defers ? 4 * 2 * kLeafParameters * 12 : 0;
        EXPECT_NEAR(static_cast<double>(moved.read - read),
                    kSteps * static_cast<double>(expected.read.value()), ahead);
        EXPECT_NEAR(static_cast<double>(moved.written - written),
                    kSteps * static_cast<double>(expected.written.value()), ahead);
        // A wait for a deferred update ends a plan that has fetched units, which are fetched again.
        const std::uint64_t again = defers && device ? 6 * (kMatrix + kVector) * 2 : 0;
        const std::uint64_t uploaded = (trainer.use().uploaded - before).value();
        EXPECT_GE(uploaded, expected.to_device.value() * kSteps);
        EXPECT_LE(uploaded, expected.to_device.value() * kSteps + again);
        EXPECT_EQ(expected.from_device, Bytes{});
      }
    }
  }
}

TEST_F(EmbeddedForecastTest, GradientsOfAGpuAreBroughtOncePerBackwardPass) {
  EmbeddedOptions options = options_for(DType::bf16);
  options.device = config::DeviceKind::cuda;
  for (const std::uint32_t gradients : {0U, 1U, 3U}) {
    options.gradients_per_step = gradients;
    const EmbeddedTraffic traffic = forecast(options).traffic();
    const auto once = static_cast<std::uint64_t>(2 * elements_);
    EXPECT_EQ(traffic.from_device, Bytes{once * std::max(gradients, 1U)});
    EXPECT_EQ(traffic.to_device, Bytes{once}) << "each parameter after its update";
  }
}

TEST(EmbeddedNeeds, ValuesThatAreFreedMakeRoomForGradients) {
  const MemoryBudget machine{
      .physical = 64_GiB,
      .physical_available = 20_GiB,
      .tightest_cgroup = {},
      .scarcest_cgroup = CgroupMemory{.limit = 32_GiB, .available = 10_GiB, .file = "memory.max"},
      .lockable = {},
      .own = 3_GiB};
  EmbeddedOptions options;
  EXPECT_EQ(available_to(options, machine, 9_GiB, {}).available(), 10_GiB);
  EXPECT_EQ(available_to(options, machine, 9_GiB, 4_GiB).available(), 6_GiB);
  EXPECT_EQ(available_to(options, machine, 9_GiB, 11_GiB).available(), 0_B);
  options.freed_values = 2_GiB;
  EXPECT_EQ(available_to(options, machine, 9_GiB, {}).available(), 12_GiB);
  EXPECT_EQ(available_to(options, machine, 9_GiB, 11_GiB).available(), 1_GiB);
  options.freed_values = 5_GiB;  // 2 of which are of a file
  EXPECT_EQ(available_to(options, machine, 9_GiB, {}).available(), 13_GiB);
  // The rest would be in memory beside state.
  EXPECT_EQ(available_to(options, machine, 1_GiB, {}).available(), 11_GiB);
}

/// A machine whose disk or memory bounds the step.
plan::MachineProfile rates(double update, double disk) {
  plan::MachineProfile profile;
  profile.h2d = profile.d2h = 1e12;
  profile.update = update;
  profile.nvme_read = profile.nvme_write = disk;
  return profile;
}

TEST_F(EmbeddedForecastTest, AStepTakesItsPassesAndItsUpdateOneAfterTheOther) {
  const EmbeddedOptions options = options_for(DType::bf16);
  const EmbeddedForecast here = forecast(options);
  const auto update = static_cast<double>(here.traffic().update.value());
  // Norms take their part beside the backward pass; the update of split has 26 bytes a parameter.
  EXPECT_NEAR(update, elements_ * (26 + 2), elements_ * 0.5);
  const double seconds = here.step_seconds(rates(update, 1), 3.0);
  EXPECT_GE(seconds, 3 + 26.0 / 28 * 0.99);
  EXPECT_LE(seconds, 3 + 1.01);
  EXPECT_THROW(static_cast<void>(here.step_seconds(rates(0, 1), 3.0)), Error);
  EXPECT_THROW(static_cast<void>(here.step_seconds(rates(1, 1), -1.0)), Error);
}

TEST_F(EmbeddedForecastTest, ADeferredUpdateHidesBehindTheForwardPass) {
  EmbeddedOptions options = options_for(DType::bf16);
  options.nvme = {directory_.path()};
  const EmbeddedForecast at_once = forecast(options);
  options.defers_updates = true;
  const EmbeddedForecast deferred = forecast(options);
  const auto read = static_cast<double>(deferred.traffic().read.value());
  // The disk takes 1 s, and forward 3 s of 9.
  const plan::MachineProfile disk = rates(1e12, read);
  EXPECT_GE(at_once.step_seconds(disk, 9), 10.0);
  EXPECT_LE(deferred.step_seconds(disk, 9), 9.6);
}

}  // namespace
}  // namespace spillway::engine::embedded_forecast_test
