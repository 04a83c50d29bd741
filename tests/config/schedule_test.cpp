#include "runtime/config/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>

#include "runtime/base/error.hpp"

namespace spillway::config::schedule_test {
namespace {

double at(const ScheduleOptions& options, std::uint64_t t) { return learning_rate(options, t); }

TEST(Schedule, WarmupIsALineToThePeakAtItsLastStep) {
  const ScheduleOptions options{.peak_lr = 1, .warmup_from = 0.2, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(at(options, 1), 0.4);
  EXPECT_DOUBLE_EQ(at(options, 2), 0.6);
  EXPECT_DOUBLE_EQ(at(options, 3), 0.8);
  EXPECT_EQ(at(options, 4), 1);
  EXPECT_EQ(at(options, 1000), 1);
}

TEST(Schedule, WithoutWarmupTheFirstStepHasThePeak) {
  EXPECT_EQ(at({.peak_lr = 0.3}, 1), 0.3);
  EXPECT_EQ(at({.kind = ScheduleKind::wsd, .peak_lr = 0.3, .total_steps = 10, .decay_steps = 2}, 1),
            0.3);
}

TEST(Schedule, LogarithmicWarmupEndsAtThePeakToo) {
  const ScheduleOptions options{
      .peak_lr = 1, .warmup_from = 0, .warmup_steps = 8, .warmup_logarithmic = true};
  EXPECT_EQ(at(options, 1), 0);
  EXPECT_DOUBLE_EQ(at(options, 2), 1.0 / 3);  // log 2 / log 8
  EXPECT_DOUBLE_EQ(at(options, 4), 2.0 / 3);
  EXPECT_EQ(at(options, 8), 1);
  const ScheduleOptions one{.peak_lr = 1, .warmup_steps = 1, .warmup_logarithmic = true};
  EXPECT_EQ(at(one, 1), 1);
}

TEST(Schedule, ThePeakIsWhatWasGivenToTheBit) {
  constexpr double kPeak = 0.009, kMinimum = 0.001;
  ASSERT_NE(kMinimum + (kPeak - kMinimum), kPeak);
  EXPECT_EQ(at({.kind = ScheduleKind::wsd,
                .peak_lr = kPeak,
                .total_steps = 10,
                .decay_steps = 2,
                .minimum_lr = kMinimum},
               1),
            kPeak);
}

// DeepSpeed: (total - iteration) / max(1, total - warm-up), of iterations counted from 0.
TEST(Schedule, ADecayOfDeepSpeedsOfOneStepBeginsAtThePeak) {
  ScheduleOptions options{.kind = ScheduleKind::warmup_decay_lr,
                          .peak_lr = 0.5,
                          .warmup_steps = 10,
                          .total_steps = 11,
                          .last_batch_iteration = 0};
  EXPECT_EQ(at(options, 11), 0.5);
  EXPECT_EQ(at(options, 12), 0);
  options.total_steps = 12;
  EXPECT_EQ(at(options, 11), 0.5);
  EXPECT_EQ(at(options, 12), 0.25);
}

TEST(Schedule, LinearDecayReachesTheMinimumAtTheLastStep) {
  const ScheduleOptions options{.kind = ScheduleKind::linear,
                                .peak_lr = 1,
                                .warmup_steps = 2,
                                .total_steps = 12,
                                .minimum_lr = 0.5};
  EXPECT_DOUBLE_EQ(at(options, 1), 0.5);
  EXPECT_EQ(at(options, 2), 1);
  EXPECT_DOUBLE_EQ(at(options, 7), 0.75);
  EXPECT_DOUBLE_EQ(at(options, 11), 0.55);
  EXPECT_EQ(at(options, 12), 0.5);
  EXPECT_EQ(at(options, 13), 0.5);
}

TEST(Schedule, CosineDecayHasTheCosinesValues) {
  const ScheduleOptions options{.kind = ScheduleKind::cosine,
                                .peak_lr = 1e-3,
                                .warmup_steps = 100,
                                .total_steps = 2000,
                                .minimum_lr = 1e-4};
  EXPECT_EQ(at(options, 100), 1e-3);
  EXPECT_DOUBLE_EQ(at(options, 1050), 5.5e-4);                             // half way
  EXPECT_NEAR(at(options, 575), 1e-4 + 9e-4 * 0.8535533905932737, 1e-18);  // (1 + sqrt(1/2)) / 2
  EXPECT_EQ(at(options, 2000), 1e-4);
  EXPECT_EQ(at(options, 1ULL << 60), 1e-4);
}

TEST(Schedule, CosineIsWithinTwoUnitsOfTheLibrarys) {
  const ScheduleOptions options{.kind = ScheduleKind::cosine, .peak_lr = 1, .total_steps = 100003};
  for (std::uint64_t t = 1; t <= 100003; ++t) {
    const double x = static_cast<double>(t) / 100003;
    ASSERT_NEAR(at(options, t), (1 + std::cos(std::numbers::pi * x)) / 2, 4e-16) << t;
  }
}

TEST(Schedule, LogarithmIsWithinTwoUnitsOfTheLibrarys) {
  const ScheduleOptions options{.peak_lr = 1, .warmup_steps = 100003, .warmup_logarithmic = true};
  for (std::uint64_t t = 1; t < 100003; ++t) {
    ASSERT_NEAR(at(options, t), std::log(static_cast<double>(t)) / std::log(100003.0), 8e-16) << t;
  }
}

TEST(Schedule, WsdIsStableUntilTheDecay) {
  const ScheduleOptions options{.kind = ScheduleKind::wsd,
                                .peak_lr = 1,
                                .warmup_steps = 10,
                                .total_steps = 100,
                                .decay_steps = 20,
                                .minimum_lr = 0.2};
  EXPECT_DOUBLE_EQ(at(options, 5), 0.5);
  EXPECT_EQ(at(options, 10), 1);
  EXPECT_EQ(at(options, 80), 1);
  EXPECT_DOUBLE_EQ(at(options, 81), 0.96);
  EXPECT_DOUBLE_EQ(at(options, 90), 0.6);
  EXPECT_EQ(at(options, 100), 0.2);
}

TEST(Schedule, WsdWithADecayOfNoStepsStays) {
  const ScheduleOptions options{
      .kind = ScheduleKind::wsd, .peak_lr = 1, .total_steps = 100, .decay_steps = 0};
  for (const std::uint64_t t : {1U, 50U, 99U, 100U, 101U, 200U}) EXPECT_EQ(at(options, t), 1) << t;
  EXPECT_EQ(resolve_schedule(options, 500).decay_steps, 0U);
}

TEST(Schedule, DeepSpeedsWithAWarmUpOfNoStepsBeginAtThePeak) {
  for (const ScheduleKind kind :
       {ScheduleKind::warmup_lr, ScheduleKind::warmup_decay_lr, ScheduleKind::warmup_cosine_lr}) {
    const ScheduleOptions options{.kind = kind,
                                  .optimizer_lr = 0.5,
                                  .peak_lr = 0.5,
                                  .warmup_logarithmic = true,
                                  .total_steps = 100};
    EXPECT_EQ(at(options, 1), 0.5);
    EXPECT_EQ(at(options, 2) < 0.5, kind == ScheduleKind::warmup_cosine_lr);
    EXPECT_EQ(at(options, 3) < 0.5, kind != ScheduleKind::warmup_lr);
  }
}

// DeepSpeed's class wants both rates; a caller that names neither of them trains nothing.
TEST(Schedule, ACycleBetweenRatesThatNobodyNamedStaysAtZero) {
  for (const std::uint64_t t : {1U, 1000U, 2000U, 3000U, 5000U}) {
    EXPECT_EQ(at({.kind = ScheduleKind::one_cycle}, t), 0) << t;
  }
}

TEST(Schedule, TheEndIsSaidAndNeverPassedUnnamed) {
  const ScheduleOptions absent{.kind = ScheduleKind::cosine, .peak_lr = 1, .minimum_lr = 0.25};
  const auto text = [&](const ScheduleOptions& given, std::uint64_t end, std::uint64_t steps) {
    return describe_end(given, resolve_schedule(given, end), steps);
  };
  EXPECT_EQ(text(absent, 100, 100),
            "scheduler.params.total_num_steps: absent, the rate falls until step 100, the last one "
            "of the run");
  EXPECT_EQ(text(absent, 100, 40), text(absent, 100, 100) + " when it began");
  try {
    static_cast<void>(text(absent, 100, 150));
    FAIL() << "50 steps train at a rate that nobody has named";
  } catch (const Error& error) {
    const std::string what = error.what();
    for (const char* const part : {"150 steps", "step 100", "rate 0.25", "a new run --from",
                                   "write scheduler.params.total_num_steps 100"}) {
      EXPECT_NE(what.find(part), std::string::npos) << what;
    }
  }
  ScheduleOptions given = absent;
  given.total_steps = 100;
  EXPECT_EQ(text(given, 0, 100), "");
  EXPECT_EQ(text(given, 0, 150),
            "scheduler.params.total_num_steps: 100, and the run has 150 steps; those behind have "
            "the rate 0.25");
  EXPECT_EQ(text({.kind = ScheduleKind::constant}, 100, 150), "");
}

TEST(Schedule, PartsThatOverlapShortenTheDecay) {
  const ScheduleOptions late{.kind = ScheduleKind::wsd,
                             .peak_lr = 1,
                             .warmup_steps = 90,
                             .total_steps = 100,
                             .decay_steps = 200};
  EXPECT_EQ(at(late, 90), 1);
  EXPECT_DOUBLE_EQ(at(late, 95), 0.5);
  const ScheduleOptions never{
      .kind = ScheduleKind::linear, .peak_lr = 1, .warmup_steps = 1000, .total_steps = 500};
  EXPECT_DOUBLE_EQ(at(never, 500), 0.5);  // still warming up
  EXPECT_EQ(at(never, 1000), 0);
}

TEST(Schedule, LengthsThatAreNotGivenAreTheRuns) {
  const ScheduleOptions wsd{.kind = ScheduleKind::wsd};
  EXPECT_EQ(resolve_schedule(wsd, 500).total_steps, 500U);
  EXPECT_EQ(resolve_schedule(wsd, 500).decay_steps, 50U);
  EXPECT_EQ(resolve_schedule(wsd, 5).decay_steps, 1U);
  const ScheduleOptions given{.kind = ScheduleKind::wsd, .total_steps = 7, .decay_steps = 3};
  EXPECT_EQ(resolve_schedule(given, 500).total_steps, 7U);
  EXPECT_EQ(resolve_schedule(given, 500).decay_steps, 3U);
}

TEST(ScheduleDeathTest, AnUnresolvedLengthIsABrokenInvariant) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(static_cast<void>(at({.kind = ScheduleKind::cosine}, 1)), "total_steps > 0");
}

// From here: what schedule_deepspeed_test.py compares with DeepSpeed itself, followed by hand.
constexpr LossScaleOptions kSmall{.dynamic = true,
                                  .initial = 16,
                                  .window = 3,
                                  .hysteresis = 2,
                                  .consecutive_hysteresis = false,
                                  .minimum = 2};

/// Scales after each step; `steps` holds + for a finite step and x for an overflow.
std::vector<double> scales(const LossScaleOptions& options, std::string_view steps) {
  LossScaleState state = initial_loss_scale(options, true);
  std::vector<double> found;
  for (const char step : steps) {
    state = next_loss_scale(options, state, step == '+');
    found.push_back(state.scale);
  }
  return found;
}

TEST(LossScale, DoublesAtTheStepAfterAWindowOfGoodOnes) {
  EXPECT_THAT(scales(kSmall, "+++++++"), testing::ElementsAre(16, 16, 16, 32, 32, 32, 64));
}

TEST(LossScale, TheFirstOverflowCostsHysteresisAndTheNextTheScale) {
  EXPECT_THAT(scales(kSmall, "xxx"), testing::ElementsAre(16, 8, 4));
  // A good step in between does not restore the hysteresis; a full window does.
  EXPECT_THAT(scales(kSmall, "x+x"), testing::ElementsAre(16, 16, 8));
  EXPECT_THAT(scales(kSmall, "x++++xx"), testing::ElementsAre(16, 16, 16, 16, 32, 32, 16));
}

TEST(LossScale, ConsecutiveHysteresisIsRestoredByEveryGoodStep) {
  LossScaleOptions options = kSmall;
  options.consecutive_hysteresis = true;
  EXPECT_THAT(scales(options, "x+x+xx"), testing::ElementsAre(16, 16, 16, 16, 16, 8));
}

TEST(LossScale, AnOverflowStartsTheWindowAgain) {
  EXPECT_THAT(scales(kSmall, "++x++++"), testing::ElementsAre(16, 16, 16, 16, 16, 16, 32));
}

TEST(LossScale, StaysBetweenItsMinimumAndWhatFp32Holds) {
  EXPECT_THAT(scales(kSmall, "xxxxxx"), testing::ElementsAre(16, 8, 4, 2, 2, 2));
  LossScaleOptions options = kSmall;
  options.initial = kMaxLossScale;
  EXPECT_EQ(scales(options, "++++").back(), kMaxLossScale);
  EXPECT_TRUE(std::isnormal(static_cast<float>(1 / kMaxLossScale)));
}

TEST(LossScale, IsAtItsMinimumWhereAnOverflowCouldNotLowerIt) {
  LossScaleState state = initial_loss_scale(kSmall, true);
  for (int halved = 0; halved < 3; ++halved) {
    EXPECT_FALSE(is_at_minimum(kSmall, state));
    state = next_loss_scale(kSmall, state, false);  // the first one uses up the hysteresis
  }
  EXPECT_FALSE(is_at_minimum(kSmall, state));
  EXPECT_TRUE(is_at_minimum(kSmall, next_loss_scale(kSmall, state, false)));
}

TEST(LossScale, WithHysteresisOneEveryOverflowHalves) {
  LossScaleOptions options = kSmall;
  options.hysteresis = 1;
  EXPECT_THAT(scales(options, "x+x"), testing::ElementsAre(8, 8, 4));
}

TEST(LossScale, LongerHysteresisTakesAsManyOverflows) {
  LossScaleOptions options = kSmall;
  options.hysteresis = 4;
  EXPECT_THAT(scales(options, "xxxxx"), testing::ElementsAre(16, 16, 16, 8, 4));
}

TEST(LossScale, IsConstantWhenStaticOrNotFp16) {
  LossScaleOptions fixed = kSmall;
  fixed.dynamic = false;
  fixed.initial = 100;
  EXPECT_THAT(scales(fixed, "+++xxx"), testing::ElementsAre(100, 100, 100, 100, 100, 100));
  LossScaleState state = initial_loss_scale(kSmall, false);
  for (int i = 0; i < 10; ++i) state = next_loss_scale(kSmall, state, i % 2 == 0);
  EXPECT_EQ(state, LossScaleState{});
  EXPECT_EQ(state.scale, 1);
}

}  // namespace
}  // namespace spillway::config::schedule_test
