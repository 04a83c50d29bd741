// What the C interface does when it is used as it says: steps against Adam in fp64, state,
// hyperparameters, checkpoints, threads.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/capi/fixture.hpp"

namespace spillway::capi_test::training_test {
namespace {

using testing::Each;
using testing::FloatNear;
using testing::Pointwise;
using testing::StrEq;

/// AdamW in fp64, of one parameter.
struct ReferenceAdam {
  std::vector<double> w, m = std::vector<double>(w.size()), v = std::vector<double>(w.size());
  void step(const std::vector<float>& gradient, double scale, double lr, double decay, int t) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = gradient[i] * scale;
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.999 * v[i] + 0.001 * g * g;
      w[i] -= lr * decay * w[i];
      w[i] -= lr * (m[i] / (1 - std::pow(0.9, t))) /
              (std::sqrt(v[i] / (1 - std::pow(0.999, t))) + 1e-8);
    }
  }
};

/// A step rounds a master below 8 by at most 2^-22, and an update of 0.02 by a few 2^-24 of it.
constexpr double kStepError = 5e-7;

std::vector<float> gradient_of(int step, std::size_t parameter, std::size_t count) {
  std::vector<float> gradient(count);
  for (std::size_t i = 0; i < count; ++i) {
    gradient[i] =
        static_cast<float>(std::sin(1 + step * 7 + static_cast<double>(parameter * 3 + i)));
  }
  return gradient;
}

class CTraining : public Training {
 protected:
  /// Trains against the reference, with a divisor, clipping and a learning rate that changes.
  void compare(int steps) {
    std::vector<ReferenceAdam> reference;
    for (const auto& values : start) reference.push_back({{values.begin(), values.end()}});
    spillway_step_options options = SPILLWAY_STEP_OPTIONS_INIT;
    options.gradient_divisor = 4;
    options.max_norm = 0.3;
    for (int t = 1; t <= steps; ++t) {
      double squares = 0;
      std::vector<std::vector<float>> gradients;
      for (std::uint32_t p = 0; p < 2; ++p) {
        gradients.push_back(gradient_of(t, p, start[p].size()));
        for (const float g : gradients[p]) squares += static_cast<double>(g) * g / 16;
        SPILLWAY_OK_(give(p, gradients[p]));
      }
      spillway_group group = SPILLWAY_GROUP_INIT;
      SPILLWAY_OK_(spillway_get_group(trainer, 1, &group));
      group.lr = 0.02 / t;
      SPILLWAY_OK_(spillway_set_group(trainer, 1, &group));
      spillway_step_result result = SPILLWAY_STEP_RESULT_INIT;
      SPILLWAY_OK_(spillway_step(trainer, &options, &result));
      SPILLWAY_OK_(spillway_synchronize(trainer));

      const double norm = std::sqrt(squares);
      EXPECT_NEAR(result.grad_norm, norm, 1e-6);  // squares of floats, summed in fp64
      EXPECT_EQ(result.step, static_cast<std::uint64_t>(t));
      EXPECT_EQ(result.skipped, 0);
      const double scale = std::min(1.0, 0.3 / (norm + 1e-6)) / 4;
      reference[0].step(gradients[0], scale, 0.01, 0.1, t);
      reference[1].step(gradients[1], scale, 0.02 / t, 0, t);
      for (std::uint32_t p = 0; p < 2; ++p) {
        for (std::size_t i = 0; i < start[p].size(); ++i) {
          EXPECT_NEAR(values(p)[i], reference[p].w[i], kStepError * t) << p << " " << i;
        }
      }
    }
  }
};

TEST_F(CTraining, FollowsAdamInDoublePrecision) {
  start_all();
  compare(20);
}

TEST_F(CTraining, FollowsAdamWithStateOnDisk) {
  const std::string folder = new_folder().string();
  const char* paths[] = {folder.c_str()};
  spillway_options options = SPILLWAY_OPTIONS_INIT;
  options.nvme = paths;
  options.nvme_count = 1;
  start_all(&options);
  compare(5);
}

TEST_F(CTraining, FollowsAdamWithDeferredUpdates) {
  spillway_options options = SPILLWAY_OPTIONS_INIT;
  options.defers_updates = 1;
  options.threads = 1;
  options.isa = SPILLWAY_ISA_SCALAR;
  start_all(&options);
  compare(5);
}

TEST_F(CTraining, GivesValuesInTheirShapeFromTheStart) {
  start_all();
  spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
  SPILLWAY_OK_(spillway_values(trainer, 0, &tensor));
  EXPECT_EQ(tensor.dtype, SPILLWAY_FP32);
  EXPECT_EQ(tensor.device, SPILLWAY_CPU);
  ASSERT_EQ(tensor.dimensions, 2);
  EXPECT_EQ(tensor.shape[0], 2);
  EXPECT_EQ(tensor.shape[1], 3);
  EXPECT_THAT(values(0), testing::ElementsAreArray(start[0]));
}

TEST_F(CTraining, SkipsAStepWhoseGradientIsNotFinite) {
  start_all();
  SPILLWAY_OK_(give(0, {1, 2, INFINITY, 4, 5, 6}));
  SPILLWAY_OK_(give(1, {1, 2, 3, 4, 5}));
  spillway_step_result result = SPILLWAY_STEP_RESULT_INIT;
  SPILLWAY_OK_(spillway_step(trainer, nullptr, &result));
  EXPECT_EQ(result.skipped, 1);
  EXPECT_THAT(values(0), testing::ElementsAreArray(start[0]));
  std::uint64_t steps = 9, updates = 9;
  SPILLWAY_OK_(spillway_get_steps(trainer, &steps, &updates));
  EXPECT_EQ(steps, 1U);
  EXPECT_EQ(updates, 0U);
}

TEST_F(CTraining, GivesTheNormBeforeTheStep) {
  start_all();
  SPILLWAY_OK_(give(0, {3, 0, 0, 0, 0, 0}));
  SPILLWAY_OK_(give(1, {0, 0, 0, 0, 4}));
  double norm = 0;
  SPILLWAY_OK_(spillway_grad_norm(trainer, 2, &norm));
  EXPECT_DOUBLE_EQ(norm, 2.5);
  SPILLWAY_OK_(spillway_discard_gradients(trainer));
  EXPECT_EQ(spillway_step(trainer, nullptr, nullptr), SPILLWAY_INVALID_ARGUMENT);
}

TEST_F(CTraining, TakesStateAndGivesItBack) {
  start_all();
  const std::vector<float> master{1, 2, 3, 4, 5}, m{0.1F, 0.2F, 0.3F, 0.4F, 0.5F},
      v{1e-3F, 2e-3F, 3e-3F, 4e-3F, 5e-3F};
  SPILLWAY_OK_(spillway_write_state(trainer, 1, 5, master.data(), m.data(), v.data()));
  SPILLWAY_OK_(spillway_set_updates(trainer, 41));
  std::vector<float> read_master(5), read_m(5), read_v(5);
  SPILLWAY_OK_(
      spillway_read_state(trainer, 1, 5, read_master.data(), read_m.data(), read_v.data()));
  EXPECT_EQ(read_master, master);
  EXPECT_EQ(read_m, m);
  EXPECT_EQ(read_v, v);
  EXPECT_THAT(values(1), testing::ElementsAreArray(master));
  SPILLWAY_OK_(spillway_read_state(trainer, 1, 5, nullptr, nullptr, read_v.data()));
  std::uint64_t updates = 0;
  SPILLWAY_OK_(spillway_get_steps(trainer, nullptr, &updates));
  EXPECT_EQ(updates, 41U);
}

TEST_F(CTraining, TakesValuesThatTheProgramWrites) {
  start_all();
  std::ranges::fill(values(1), 7.0F);
  SPILLWAY_OK_(spillway_values_changed(trainer, 1));
  std::vector<float> master(5);
  SPILLWAY_OK_(spillway_read_state(trainer, 1, 5, master.data(), nullptr, nullptr));
  EXPECT_THAT(master, Each(7.0F));
}

TEST_F(CTraining, RefusesValuesThatWereWrittenBesideADeferredUpdate) {
  spillway_options options = SPILLWAY_OPTIONS_INIT;
  options.defers_updates = 1;
  start_all(&options);
  std::vector<float> master(5);
  for (const float written : {7.0F, 8.0F}) {
    for (const std::uint32_t p : {0U, 1U}) SPILLWAY_OK_(give(p, start[p]));
    SPILLWAY_OK_(spillway_step(trainer, nullptr, nullptr));
    EXPECT_EQ(spillway_values_changed(trainer, 1), SPILLWAY_INVALID_ARGUMENT);
    EXPECT_THAT(spillway_last_message(),
                testing::AllOf(testing::HasSubstr("\"bias\""), testing::HasSubstr("synchronize")));
    SPILLWAY_OK_(written == 7 ? spillway_synchronize(trainer) : spillway_wait(trainer, 1));
    std::ranges::fill(values(1), written);
    SPILLWAY_OK_(spillway_values_changed(trainer, 1));
    SPILLWAY_OK_(spillway_read_state(trainer, 1, 5, master.data(), nullptr, nullptr));
    EXPECT_THAT(master, Each(written));
  }
}

TEST_F(CTraining, GroupsMayHaveDifferentOptimizers) {
  spillway_group group = SPILLWAY_GROUP_INIT;
  group.lr = 0.01;
  SPILLWAY_OK_(spillway_add_group(trainer, &group, nullptr));
  group.optimizer = SPILLWAY_SGD;
  group.beta1 = 0;
  SPILLWAY_OK_(spillway_add_group(trainer, &group, nullptr));
  for (std::uint32_t i = 0; i < 2; ++i) {
    const spillway_tensor tensor = tensor_of(std::span(start[i]), shapes[i]);
    SPILLWAY_OK_(spillway_add_parameter(trainer, names[i].c_str(), i, &tensor, nullptr));
  }
  SPILLWAY_OK_(spillway_start(trainer, nullptr));
  for (const std::uint32_t p : {0U, 1U}) {
    SPILLWAY_OK_(give(p, std::vector<float>(start[p].size(), 3.0F)));
  }
  SPILLWAY_OK_(spillway_step(trainer, nullptr, nullptr));
  // The first step of Adam is as long as the learning rate, one of SGD as that times the gradient.
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(values(0)[i], start[0][i] - 0.01F, 1e-6);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(values(1)[i], start[1][i] - 0.03F, 1e-6);
}

TEST_F(CTraining, LoadsWhatItSaved) {
  start_all();
  compare(3);
  const std::string path = (new_folder() / "checkpoint").string();
  SPILLWAY_OK_(spillway_save(trainer, path.c_str()));
  const std::vector<float> saved(values(0).begin(), values(0).end());

  spillway_trainer* first = std::exchange(trainer, nullptr);
  SPILLWAY_OK_(spillway_create(&trainer));
  start_all();
  SPILLWAY_OK_(spillway_load(trainer, path.c_str()));
  EXPECT_THAT(values(0), testing::ElementsAreArray(saved));
  // What follows has the same bits.
  for (spillway_trainer* one : {first, trainer}) {
    std::swap(trainer, one);
    SPILLWAY_OK_(give(0, {1, 2, 3, 4, 5, 6}));
    SPILLWAY_OK_(give(1, {1, 2, 3, 4, 5}));
    spillway_step_result result = SPILLWAY_STEP_RESULT_INIT;
    SPILLWAY_OK_(spillway_step(trainer, nullptr, &result));
    EXPECT_EQ(result.step, 4U);
    std::swap(trainer, one);
  }
  const std::vector<float> resumed(values(0).begin(), values(0).end());
  std::swap(first, trainer);
  EXPECT_THAT(values(0), testing::ElementsAreArray(resumed));
  SPILLWAY_OK_(spillway_destroy(first));
}

TEST_F(CTraining, TellsItsMemoryAndItsLanesAtAnyTime) {
  start_all();
  SPILLWAY_OK_(give(0, {1, 2, 3, 4, 5, 6}));  // a step is under way
  std::uint64_t bytes = 0, rows = 0;
  for (spillway_memory_row row = SPILLWAY_MEMORY_ROW_INIT;; ++rows) {
    SPILLWAY_OK_(spillway_get_memory(trainer, static_cast<std::uint32_t>(rows), &row));
    if (row.tier == nullptr) break;
    EXPECT_THAT(row.tier, StrEq("host"));
    EXPECT_THAT(row.what, testing::Not(StrEq("")));
    bytes += row.bytes;
  }
  EXPECT_GE(bytes, 11 * 16U);  // values, master and two moments of 11 parameters at least
  bool has_cpu = false;
  spillway_lane_row lane = SPILLWAY_LANE_ROW_INIT;
  for (std::uint32_t i = 0; i == 0 || lane.lane != nullptr; ++i) {
    SPILLWAY_OK_(spillway_get_lane(trainer, i, &lane));
    has_cpu = has_cpu || (lane.lane != nullptr && std::string(lane.lane) == "cpu");
  }
  EXPECT_TRUE(has_cpu);
}

TEST_F(CTraining, WritesATrace) {
  spillway_options options = SPILLWAY_OPTIONS_INIT;
  options.traces = 1;
  start_all(&options);
  compare(2);
  const std::filesystem::path path = new_folder() / "trace.json";
  SPILLWAY_OK_(spillway_write_trace(trainer, path.c_str()));
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, testing::HasSubstr("\"update\""));
}

TEST_F(CTraining, TakesGradientsFromManyThreads) {
  start_all();
  for (int t = 1; t <= 20; ++t) {
    std::vector<std::thread> threads;
    for (std::uint32_t p = 0; p < 2; ++p) {
      threads.emplace_back([&, p] {
        EXPECT_EQ(spillway_wait(trainer, p), SPILLWAY_OK);
        EXPECT_EQ(give(p, std::vector<float>(start[p].size(), 1.0F)), SPILLWAY_OK);
      });
    }
    for (std::thread& thread : threads) thread.join();
    SPILLWAY_OK_(spillway_step(trainer, nullptr, nullptr));
  }
}

TEST_F(CTraining, SumsTheGradientsOfOneParameterFromManyThreads) {
  spillway_options options = SPILLWAY_OPTIONS_INIT;
  options.gradients_per_step = 4;
  start_all(&options);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      EXPECT_EQ(give(0, {0.75F, 0, 0, 0, 0, 0}), SPILLWAY_OK);
      EXPECT_EQ(give(1, {0, 0, 0, 0, 1}), SPILLWAY_OK);
    });
  }
  for (std::thread& thread : threads) thread.join();
  spillway_step_result result = SPILLWAY_STEP_RESULT_INIT;
  SPILLWAY_OK_(spillway_step(trainer, nullptr, &result));
  EXPECT_DOUBLE_EQ(result.grad_norm, 5);  // of 3 and 4
}

TEST(CInterface, SaysItsVersions) {
  EXPECT_EQ(spillway_abi_version(), static_cast<std::uint32_t>(SPILLWAY_ABI_VERSION));
  EXPECT_THAT(spillway_version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(spillway_status_name(SPILLWAY_DOES_NOT_FIT), StrEq("does_not_fit"));
  EXPECT_THAT(spillway_status_name(1000), StrEq("unknown"));
}

}  // namespace
}  // namespace spillway::capi_test::training_test
