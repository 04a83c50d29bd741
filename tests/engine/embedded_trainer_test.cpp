// Parameters whose forward and backward the test runs, bit for bit between tiers, modes and orders
// of arrival.
#include <cmath>
#include <limits>
#include <thread>

#include "runtime/engine/embedded/plan/layout.hpp"
#include "tests/engine/embedded_fixture.hpp"

namespace spillway::engine::embedded_trainer_test {
namespace {

struct Mode {
  const char* name;
  DType dtype;
  StateFormat format;
  bool on_disk;
  bool deferred;
};

class EmbeddedModes : public EmbeddedTrainerTest, public testing::WithParamInterface<Mode> {
 protected:
  EmbeddedOptions options() {
    EmbeddedOptions options = options_for(GetParam().dtype);
    options.state_format = GetParam().format;
    options.defers_updates = GetParam().deferred;
    if (GetParam().on_disk) options.nvme = {directory_.path() / "swap"};
    return options;
  }
  EmbeddedOptions in_memory() {
    EmbeddedOptions options = options_for(GetParam().dtype);
    options.state_format = GetParam().format;
    return options;
  }
};

TEST_P(EmbeddedModes, HaveTheBitsOfStateInMemory) {
  const auto there = train(*make(options()), 1, 5);
  const auto here = train(*make(in_memory()), 1, 5);
  EXPECT_TRUE(there == here);
}

TEST_P(EmbeddedModes, SaveWhatTheyHadBeforeTheStepUnderWay) {
  const auto usual = train(*make(in_memory()), 1, 4);
  const auto trainer = make(options());
  train(*trainer, 1, 2);
  for (const std::size_t parameter : {4U, 2U}) give(*trainer, parameter, 3);
  trainer->save(directory_.path() / "checkpoint");
  for (const std::size_t parameter : {3U, 1U, 0U}) give(*trainer, parameter, 3);
  trainer->step({.gradient_divisor = 2, .max_norm = 1});
  EXPECT_TRUE(train(*trainer, 4, 4) == usual);
  const auto second = make(in_memory());
  second->load(directory_.path() / "checkpoint");
  EXPECT_EQ(second->steps(), 2U);
  EXPECT_TRUE(train(*second, 3, 4) == usual);
}

TEST_P(EmbeddedModes, GoOnFromACheckpointOnAnotherTier) {
  const auto first = make(options());
  train(*first, 1, 3);
  first->save(directory_.path() / "checkpoint");
  const auto on = train(*first, 4, 6);
  EmbeddedOptions other = in_memory();
  if (!GetParam().on_disk) other.nvme = {directory_.path() / "other"};
  const auto second = make(other);
  second->load(directory_.path() / "checkpoint");
  EXPECT_EQ(second->steps(), 3U);
  EXPECT_TRUE(train(*second, 4, 6) == on);
  EXPECT_EQ(state(*first), state(*second));
}

TEST_P(EmbeddedModes, ReadAndWriteTheStateOfOneParameter) {
  const auto first = make(options());
  train(*first, 1, 3);
  const auto second = make(in_memory());
  for (std::uint32_t i = 0; i < first->size(); ++i) {
    const std::size_t count = model_.sizes[i];
    std::vector<float> master(count), m(count), v(count);
    first->read_state(i, master, m, v);
    second->write_state(i, master, m, v);
  }
  second->set_updates(first->updates());
  EXPECT_TRUE(image(*first) == image(*second));
  // The moments of int8 are rounded again to codes with a new scale.
  if (GetParam().format == StateFormat::int8) return;
  EXPECT_TRUE(train(*first, 4, 5) == train(*second, 4, 5));
}

INSTANTIATE_TEST_SUITE_P(
    , EmbeddedModes,
    testing::Values(Mode{"fp32_disk", DType::fp32, StateFormat::fp32, true, false},
                    Mode{"fp32_deferred", DType::fp32, StateFormat::fp32, false, true},
                    Mode{"split_disk_deferred", DType::bf16, StateFormat::split, true, true},
                    Mode{"wide_bf16_disk", DType::bf16, StateFormat::fp32, true, false},
                    Mode{"bf16_disk", DType::bf16, StateFormat::bf16, true, false},
                    Mode{"int8_deferred", DType::bf16, StateFormat::int8, false, true}),
    [](const auto& mode) { return std::string(mode.param.name); });

TEST_F(EmbeddedTrainerTest, HasEightBitMomentsNearThoseThatAreExact) {
  EmbeddedOptions options = options_for(DType::bf16);
  const auto exact = make(options);
  options.state_format = StateFormat::int8;
  const auto codes = make(options);
  train(*exact, 1, 1);
  train(*codes, 1, 1);
  for (std::uint32_t i = 0; i < exact->size(); ++i) {
    std::vector<float> m(model_.sizes[i]), coded(model_.sizes[i]);
    exact->read_state(i, {}, m, {});
    codes->read_state(i, {}, coded, {});
    const float largest =
        std::abs(std::ranges::max(m, {}, [](float value) { return std::abs(value); }));
    // The codes are at most a fiftieth of the largest apart (Dettmers et al. 2022, figure 2).
    for (std::size_t k = 0; k < m.size(); ++k) ASSERT_NEAR(m[k], coded[k], 0.02 * largest) << i;
  }
}

TEST_F(EmbeddedTrainerTest, TrainersThatShareAParameterHaveTheBitsOfOne) {
  const EmbeddedOptions options = options_for();
  const Tensor start = normal(9000, 5);
  const auto part = [&](std::size_t first, std::size_t end) {
    const EmbeddedParameter parameter{
        .name = "part", .elements = end - first, .values = bytes_of(start).data() + 4 * first};
    return std::make_unique<EmbeddedTrainer>(options, std::span(&parameter, 1));
  };
  const auto whole = part(0, 9000), left = part(0, 4096), right = part(4096, 9000);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const Tensor gradient = normal(9000, 10 + step);
    whole->add_gradient(0, bytes_of(gradient));
    left->add_gradient(0, bytes_of(gradient).first(4 * 4096));
    right->add_gradient(0, bytes_of(gradient).subspan(4 * 4096));
    std::vector<double> sums(left->leaf_sums().begin(), left->leaf_sums().end());
    sums.insert(sums.end(), right->leaf_sums().begin(), right->leaf_sums().end());
    const double norm = norm_of(sums, std::vector<std::uint64_t>{9000}) / 2;
    EXPECT_EQ(whole->step({.gradient_divisor = 2, .max_norm = 1}).grad_norm, norm);
    for (const auto& each : {left.get(), right.get()}) {
      each->step({.gradient_divisor = 2, .max_norm = 1, .grad_norm = norm});
    }
  }
  EXPECT_TRUE(std::ranges::equal(left->values(0), whole->values(0).first(4 * 4096)));
  EXPECT_TRUE(std::ranges::equal(right->values(0), whole->values(0).subspan(4 * 4096)));
}

TEST_F(EmbeddedTrainerTest, SkipsAStepWhoseNormElsewhereIsNotFinite) {
  const auto trainer = make(options_for());
  backward(*trainer, 1);
  EXPECT_TRUE(trainer->step({.grad_norm = HUGE_VAL}).skipped);
  EXPECT_EQ(trainer->updates(), 0);
  EXPECT_THROW(static_cast<void>(norm_of(std::vector<double>(1), std::vector<std::uint64_t>{9000})),
               Error);
}

TEST_F(EmbeddedTrainerTest, UpdatesUpToTheLargestNormThatFp32Holds) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  const auto trainer = make(options_for());
  backward(*trainer, 1);
  EXPECT_FALSE(trainer->step({.grad_norm = kLargest}).skipped);
  backward(*trainer, 2);
  EXPECT_TRUE(trainer->step({.grad_norm = std::nextafter(kLargest, HUGE_VAL)}).skipped);
}

TEST_F(EmbeddedTrainerTest, TakesGradientsFromManyThreadsInAnyOrder) {
  const auto one = make(options_for());
  const auto four = make(options_for());
  for (int step = 1; step <= 10; ++step) {
    backward(*one, step);
    std::vector<std::thread> threads;
    for (std::size_t first = 0; first < 4; ++first) {
      threads.emplace_back([&, first] {
        for (std::size_t i = first; i < model_.sizes.size(); i += 4) give(*four, i, step);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(one->step({.max_norm = 1}).grad_norm, four->step({.max_norm = 1}).grad_norm);
  }
  EXPECT_TRUE(image(*one) == image(*four));
}

TEST_F(EmbeddedTrainerTest, SumsSeveralGradientsInOrder) {
  for (const std::uint32_t count : {3U, 0U}) {
    EmbeddedOptions options = options_for();
    options.gradients_per_step = count;
    const auto several = make(options);
    const auto summed = make(options_for());
    for (const int first : {0, 3}) {  // the sums of the step before do not count
      for (int m = first; m < first + 3; ++m) backward(*several, m);
      several->step({.gradient_divisor = 3});
      for (std::uint32_t i = 0; i < summed->size(); ++i) {
        Tensor sum = model_.gradient(i, first);
        for (int m = first + 1; m < first + 3; ++m) {
          const Tensor more = model_.gradient(i, m);
          for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += more[k];
        }
        summed->add_gradient(i, bytes_of(sum));
      }
      summed->step({.gradient_divisor = 3});
    }
    EXPECT_TRUE(image(*several) == image(*summed));
  }
}

TEST_F(EmbeddedTrainerTest, ADeferredUpdateReadsTheGradientsOfItsOwnStep) {
  // Large enough for an update to run while the next gradients come.
  model_.sizes.assign(4, 1U << 20);
  model_.groups = {0, 1, 0, 1};
  model_.values.assign(4, Tensor(1U << 20, 1.0F));
  EmbeddedOptions options = options_for();
  options.groups[0].optimizer = options.groups[1].optimizer = cpu_adam::Optimizer::sgd;
  const auto now = make(options);
  options.defers_updates = true;
  const auto later = make(options);
  for (const auto& trainer : {now.get(), later.get()}) {
    for (int step = 1; step <= 4; ++step) {
      const Tensor gradient(1U << 20, static_cast<float>(step));
      for (const std::uint32_t parameter : {3U, 2U, 1U, 0U}) {
        trainer->add_gradient(parameter, bytes_of(gradient));
      }
      trainer->step({});
    }
  }
  EXPECT_TRUE(image(*now) == image(*later));
}

TEST_F(EmbeddedTrainerTest, FollowsValuesThatTheFrameworkWrites) {
  const auto trainer = make(options_for(DType::bf16));
  train(*trainer, 1, 2);
  const auto other = in_bf16(normal(model_.sizes[1], 99));
  std::ranges::copy(other, trainer->values(1).begin());
  trainer->take_values(1);
  std::vector<float> master(model_.sizes[1]), m(model_.sizes[1]);
  trainer->read_state(1, master, m, {});
  for (std::size_t i = 0; i < master.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, other.data() + 2 * i, 2);
    ASSERT_EQ(master[i], from_bf16(bits));
    ASSERT_NE(m[i], 0);
  }
}

TEST_F(EmbeddedTrainerTest, UpdatesTheValuesThatTheFrameworkHasComputedWith) {
  for (const bool on_disk : {false, true}) {
    EmbeddedOptions options = options_for();
    options.groups[0].optimizer = options.groups[1].optimizer = cpu_adam::Optimizer::sgd;
    options.groups[0].beta1 = options.groups[1].beta1 = 0;
    options.groups[0].weight_decay = options.groups[1].weight_decay = 0;
    if (on_disk) options.nvme = {directory_.path() / "swap"};
    const auto trainer = make(options);
    train(*trainer, 1, 2);
    const Tensor written = normal(model_.sizes[1], 99);
    std::ranges::copy(bytes_of(written), trainer->values(1).begin());  // and nobody is told
    std::vector<float> master(model_.sizes[1]);
    trainer->read_state(1, master, {}, {});
    EXPECT_EQ(master, written);
    backward(*trainer, 3);
    trainer->step({});
    const Tensor gradient = model_.gradient(1, 3);
    const double rate = options.groups[model_.groups[1]].lr;
    const auto* values = reinterpret_cast<const float*>(trainer->values(1).data());
    for (std::size_t i = 0; i < written.size(); ++i) {
      ASSERT_NEAR(values[i], written[i] - rate * gradient[i], 1e-6 * (1 + std::abs(written[i])));
    }
  }
}

TEST_F(EmbeddedTrainerTest, ZerosThatTheFrameworkWritesAreZerosInEveryFormat) {
  for (const StateFormat format : {StateFormat::fp32, StateFormat::split, StateFormat::int8}) {
    for (const bool on_disk : {false, true}) {
      EmbeddedOptions options = options_for(DType::bf16);
      options.state_format = format;
      options.groups[0].lr = options.groups[1].lr = 1e-3;
      if (on_disk) options.nvme = {directory_.path() / "swap"};
      const auto trainer = make(options);
      train(*trainer, 1, 2);
      std::ranges::fill(trainer->values(1), std::byte{});
      train(*trainer, 3, 3);
      std::vector<float> master(model_.sizes[1]);
      trainer->read_state(1, master, {}, {});
      // Adam's first updates move a weight by some times the rate at most.
      for (const float each : master) ASSERT_LE(std::abs(each), 1e-2F);
    }
  }
}

TEST_F(EmbeddedTrainerTest, ValuesThatAreChangedAndChangedBackLoseNothing) {
  for (const StateFormat format : {StateFormat::fp32, StateFormat::split, StateFormat::int8}) {
    EmbeddedOptions options = options_for(DType::bf16);
    options.state_format = format;
    const auto trainer = make(options);
    train(*trainer, 1, 2);
    const auto values = trainer->values(1);
    const std::vector<std::byte> published(values.begin(), values.end());
    const std::vector<float> before = state(*trainer);
    std::ranges::fill(values, std::byte{});  // whatever the lower halves are, zero is a number
    std::ranges::copy(published, values.begin());
    trainer->take_values(1, {}, TakenValues::changed);
    EXPECT_EQ(state(*trainer), before);
    // Half of the elements are zero from now on, and masters of the others stay.
    std::ranges::fill(values.first(values.size() / 2), std::byte{});
    trainer->take_values(1, {}, TakenValues::changed);
    std::vector<float> master(model_.sizes[1]);
    trainer->read_state(1, master, {}, {});
    for (std::size_t i = 0; i < master.size(); ++i) {
      const float kept = before[3 * model_.sizes[0] + i];
      if (i < master.size() / 2) {
        ASSERT_LE(std::abs(master[i]), 1e-38F);
      } else {
        ASSERT_EQ(master[i], kept);
      }
    }
  }
}

/// Returns how many blocks parameters of these sizes take.
std::uint32_t blocks_of(const std::vector<std::uint64_t>& sizes) {
  const std::byte start{};
  std::vector<EmbeddedParameter> parameters;
  for (const std::uint64_t size : sizes) {
    parameters.push_back(
        {.name = std::to_string(parameters.size()), .elements = size, .values = &start});
  }
  return make_layout(options_for(), parameters).residents;
}

// The norm of a block begins when all its gradients are there.
TEST(EmbeddedBlocks, HaveUpToEightMebiParametersOrALargerOne) {
  EXPECT_EQ(blocks_of({4U << 20, 4U << 20}), 1U);
  EXPECT_EQ(blocks_of({4U << 20, 4U << 20, 1}), 2U);
  EXPECT_EQ(blocks_of({64U << 20, 1, 1}), 2U);
}

}  // namespace
}  // namespace spillway::engine::embedded_trainer_test
