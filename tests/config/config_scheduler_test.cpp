// DeepSpeed's schedulers and Spillway's own, as configuration.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/config/schedule.hpp"
#include "tests/config/config_test_support.hpp"

namespace spillway::config::config_scheduler_test {
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
  EXPECT_EQ(options.schedule.kind, ScheduleKind::warmup_lr);
  EXPECT_EQ(options.schedule.warmup_from, 0.0001);
  EXPECT_EQ(options.schedule.peak_lr, 0.004);
  EXPECT_EQ(options.schedule.optimizer_lr, 0.002);
  EXPECT_EQ(options.schedule.warmup_steps, 10U);
  EXPECT_FALSE(options.schedule.warmup_logarithmic);
  EXPECT_THAT(notes, Contains("scheduler.params.warmup_max_lr: 0.004 takes the place of "
                              "optimizer.params.lr 0.002"));
}

TEST(ConfigScheduler, AbsentParametersAreDeepSpeeds) {
  const TrainOptions options = with_scheduler(R"({"type": "WarmupLR"})").options;
  EXPECT_EQ(options.schedule.peak_lr, 0.002);  // the optimizer's
  EXPECT_EQ(options.schedule.warmup_from, 0);
  EXPECT_EQ(options.schedule.warmup_steps, 1000U);
  EXPECT_TRUE(options.schedule.warmup_logarithmic);
  const auto [decaying, notes] = with_scheduler(R"({"type": "WarmupDecayLR"})");
  EXPECT_EQ(decaying.schedule.peak_lr, 0.001);
  EXPECT_THAT(notes, Contains(HasSubstr("absent: 0.001, as in DeepSpeed")));
}

TEST(ConfigScheduler, AutoFollowsTheOptimizerAndTheRun) {
  const auto [options, notes] = with_scheduler(
      R"({"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
          "warmup_num_steps": "auto", "total_num_steps": "auto"}})");
  EXPECT_EQ(options.schedule.kind, ScheduleKind::warmup_decay_lr);
  EXPECT_EQ(options.schedule.peak_lr, 0.002);
  EXPECT_EQ(options.schedule.warmup_steps, 0U);
  EXPECT_EQ(options.schedule.total_steps, 0U);
  EXPECT_THAT(notes, Contains("scheduler.params.warmup_max_lr: \"auto\" is optimizer.params.lr"));
  EXPECT_THAT(notes, Contains("scheduler.params.warmup_num_steps: \"auto\" is 0"));
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

TEST(ConfigScheduler, ACycleThatWouldDivideByZeroOrLoseItsMomentumIsRefused) {
  const auto refused = [](std::string_view params) {
    return std::string(
        test::parse_error(R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, )" +
                          std::string(params) + "}}}")
            .what());
  };
  EXPECT_THAT(refused(R"("cycle_max_lr": 1, "cycle_max_mom": 1)"),
              HasSubstr("cycle_max_mom is 1; write a number from 0, below 1"));
  TrainOptions flat = with_scheduler(R"({"type": "OneCycle", "params": {"cycle_min_lr": 0,
                                         "cycle_max_lr": 1}})")
                          .options;
  flat.schedule.one_cycle.max_momentum = 1;
  EXPECT_THAT(test::validate_error(flat).what(), HasSubstr("cycle_max_mom is 1"));
  EXPECT_THAT(refused(R"("cycle_max_lr": 1e31)"), HasSubstr("cycle_max_lr is 1e+31"));
  const TrainOptions rising =
      with_scheduler(R"({"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1,
                         "cycle_first_step_size": 10, "decay_step_size": 1,
                         "decay_mom_rate": 0.01}})")
          .options;
  EXPECT_NO_THROW(check_momentum(rising.schedule, 30));
  EXPECT_THROW(check_momentum(rising.schedule, 40), Error);
}

TEST(ConfigScheduler, AListOfRatesIsTakenWhereItSaysOneRate) {
  const ScheduleOptions warmup =
      with_scheduler(R"({"type": "WarmupLR", "params": {"warmup_min_lr": [1e-5],
                         "warmup_max_lr": [0.004, 0.004]}})")
          .options.schedule;
  EXPECT_EQ(warmup.warmup_from, 1e-5);
  EXPECT_EQ(warmup.peak_lr, 0.004);
  const ScheduleOptions cycle =
      with_scheduler(R"({"type": "OneCycle", "params": {"cycle_min_lr": [0.1, 0.1, 0.1],
                         "cycle_max_lr": [1], "cycle_min_mom": [0.7], "cycle_max_mom": [0.8]}})")
          .options.schedule;
  EXPECT_EQ(cycle.one_cycle.min_lr, 0.1);
  EXPECT_EQ(cycle.one_cycle.max_lr, 1);
  EXPECT_EQ(cycle.one_cycle.min_momentum, 0.7);
  EXPECT_EQ(cycle.one_cycle.max_momentum, 0.8);
  EXPECT_EQ(with_scheduler(R"({"type": "LRRangeTest", "params": {"lr_range_test_min_lr": [0.5]}})")
                .options.schedule.range_test.min_lr,
            0.5);
  const auto refused = [](const char* list) {
    return std::string(
        test::parse_error(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": )" +
                          std::string(list) + "}}}")
            .what());
  };
  EXPECT_THAT(refused("[0.1, 0.2]"),
              HasSubstr("scheduler.params.warmup_max_lr holds 0.1 and 0.2, but all parameters have "
                        "the same rate"));
  EXPECT_THAT(refused("[]"), HasSubstr("warmup_max_lr is an array; write a number from 0"));
  EXPECT_THAT(refused("[0.1, -1]"), HasSubstr("warmup_max_lr holds -1; write a number from 0"));
  EXPECT_THAT(refused("[\"x\"]"), HasSubstr("warmup_max_lr is an array; write a number"));
}

TEST(ConfigScheduler, WhatTheTypeDoesNotUseIsNoted) {
  EXPECT_THAT(with_scheduler(R"({"type": "WarmupLR", "params": {"total_num_steps": 9}})").notes,
              Contains("scheduler.params.total_num_steps: not needed: scheduler.type \"WarmupLR\" "
                       "does not use it"));
  EXPECT_THAT(parse_train_config(R"({"optimizer": {"type": "SGD", "params": {"betas": [0, 0]}}})",
                                 "test.json")
                  .notes,
              Contains(HasSubstr("optimizer.params.betas: not needed: optimizer.type \"SGD\"")));
}

TEST(ConfigScheduler, RefusesWhatItCannotDoByName) {
  EXPECT_THAT(test::parse_error(R"({"scheduler": {"type": "OneCycle",
                                    "params": {"cycle_min_lr": 1}}})")
                  .what(),
              HasSubstr("scheduler.params.cycle_max_lr is missing"));
  EXPECT_THAT(test::parse_error(R"({"scheduler": {"type": "StepLR"}})").what(),
              HasSubstr("scheduler.type is \"StepLR\"; write one of Constant, Linear"));
  EXPECT_THAT(test::parse_error(R"({"scheduler": {"type": "WarmupLR",
                                    "params": {"last_batch_iteration": -2}}})")
                  .what(),
              HasSubstr("last_batch_iteration is -2; write a whole number from -1"));
  EXPECT_THAT(test::parse_error(R"({"scheduler": {"type": "WarmupLR",
                                    "params": {"last_batch_iteration": 9223372036854775808}}})")
                  .what(),
              HasSubstr("last_batch_iteration is 9223372036854775808; write a whole number"));
  EXPECT_THAT(test::parse_error(R"({"scheduler": {"type": "Cosine",
                                    "params": {"min_lr": 0, "min_ratio": 0}}})")
                  .what(),
              HasSubstr("either min_lr or min_ratio"));
  EXPECT_THAT(test::parse_error(R"({"scheduler": {"type": "WarmupLR",
                                    "params": {"warmup_type": "cosine"}}})")
                  .what(),
              HasSubstr("warmup_type is \"cosine\"; write one of log, linear"));
}

}  // namespace
}  // namespace spillway::config::config_scheduler_test
