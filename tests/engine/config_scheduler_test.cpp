// DeepSpeed's schedulers and Spillway's own, as configuration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/config_test_support.hpp"

namespace spillway::engine {
namespace {

using testing::Contains;
using testing::HasSubstr;

ParsedConfig with_scheduler(std::string_view scheduler) {
  return parse_train_config("{\"optimizer\": {\"params\": {\"lr\": 0.002}}, \"scheduler\": " +
                                std::string(scheduler) + "}",
                            "test.json");
}

TEST(ConfigScheduler, WarmupLRHasRatesOfItsOwn) {
  const auto [options, notes] = with_scheduler(
      R"({"type": "WarmupLR", "params": {"warmup_min_lr": 0.0001, "warmup_max_lr": 0.004,
          "warmup_num_steps": 10, "warmup_type": "linear"}})");
  EXPECT_EQ(options.schedule.kind, ScheduleKind::constant);
  EXPECT_EQ(options.schedule.warmup_from, 0.0001);
  EXPECT_EQ(options.schedule.peak_lr, 0.004);
  EXPECT_EQ(options.adam.lr, 0.004);
  EXPECT_EQ(options.schedule.warmup_steps, 10U);
  EXPECT_FALSE(options.schedule.warmup_logarithmic);
  EXPECT_THAT(notes, Contains("scheduler.params.warmup_max_lr: 0.004 takes the place of "
                              "optimizer.params.lr 0.002"));
}

TEST(ConfigScheduler, AbsentParametersAreDeepSpeeds) {
  const auto [options, notes] = with_scheduler(R"({"type": "WarmupLR"})");
  EXPECT_EQ(options.schedule.peak_lr, 0.001);
  EXPECT_EQ(options.schedule.warmup_from, 0);
  EXPECT_EQ(options.schedule.warmup_steps, 1000U);
  EXPECT_TRUE(options.schedule.warmup_logarithmic);
  EXPECT_THAT(notes, Contains(HasSubstr("absent: 0.001, as in DeepSpeed")));
}

TEST(ConfigScheduler, AutoFollowsTheOptimizerAndTheRun) {
  const auto [options, notes] = with_scheduler(
      R"({"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
          "warmup_num_steps": "auto", "total_num_steps": "auto"}})");
  EXPECT_EQ(options.schedule.kind, ScheduleKind::linear);
  EXPECT_EQ(options.schedule.peak_lr, 0.002);
  EXPECT_EQ(options.schedule.warmup_steps, 0U);
  EXPECT_EQ(options.schedule.total_steps, 0U);
  EXPECT_THAT(notes, Contains("scheduler.params.warmup_max_lr: \"auto\" is optimizer.params.lr"));
}

TEST(ConfigScheduler, WarmupDecayLREndsAtItsMinimum) {
  const auto [options, notes] = with_scheduler(
      R"({"type": "WarmupDecayLR", "params": {"warmup_min_lr": 1e-5, "warmup_max_lr": 0.002,
          "total_num_steps": 500}})");
  EXPECT_EQ(options.schedule.minimum_lr, 1e-5);
  EXPECT_EQ(options.schedule.total_steps, 500U);
}

TEST(ConfigScheduler, OwnTypesSayEverything) {
  const auto [cosine, notes] = with_scheduler(
      R"({"type": "Cosine", "params": {"warmup_num_steps": 100, "min_ratio": 0.1}})");
  EXPECT_EQ(cosine.schedule.kind, ScheduleKind::cosine);
  EXPECT_DOUBLE_EQ(cosine.schedule.minimum_lr, 0.0002);
  EXPECT_EQ(cosine.schedule.peak_lr, 0.002);
  EXPECT_FALSE(cosine.schedule.warmup_logarithmic);
  const TrainOptions wsd =
      with_scheduler(R"({"type": "WSD", "params": {"min_lr": 1e-5, "decay_num_steps": 30,
                         "total_num_steps": 300}})")
          .options;
  EXPECT_EQ(wsd.schedule.kind, ScheduleKind::wsd);
  EXPECT_EQ(wsd.schedule.decay_steps, 30U);
  EXPECT_EQ(with_scheduler(R"({"type": "Linear"})").options.schedule.kind, ScheduleKind::linear);
  EXPECT_EQ(with_scheduler(R"({"type": "Constant"})").options.schedule.kind,
            ScheduleKind::constant);
}

TEST(ConfigScheduler, RefusesWhatItCannotDoByName) {
  for (const char* const type : {"LRRangeTest", "OneCycle"}) {
    const Error error = test::parse_error(std::string(R"({"scheduler": {"type": ")") + type +
                                          R"(", "params": {"cycle_min_lr": 1}}})");
    EXPECT_EQ(error.code(), ErrorCode::not_supported);
    EXPECT_THAT(error.what(), HasSubstr(std::string("scheduler.type is \"") + type + "\""));
  }
  EXPECT_THAT(test::parse_error(R"({"scheduler": {"type": "Cosine",
                                    "params": {"min_lr": 0, "min_ratio": 0}}})")
                  .what(),
              HasSubstr("either min_lr or min_ratio"));
  EXPECT_THAT(test::parse_error(R"({"scheduler": {"type": "WarmupLR",
                                    "params": {"warmup_type": "cosine"}}})")
                  .what(),
              HasSubstr("warmup_type is \"cosine\"; write log or linear"));
}

}  // namespace
}  // namespace spillway::engine
