// validate refuses what options exclude of each other, by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string_view>

#include "runtime/config/schedule.hpp"
#include "tests/config/config_test_support.hpp"

namespace spillway::config::config_validate_test {
namespace {

using test::validate_error;
using testing::HasSubstr;

/// Stages meet after every two steps.
void meet_seldom(TrainOptions& options) {
  options.pipeline = {.stages = 2, .schedule = PipelineSchedule::pipedream_2bw, .meet_every = 2};
  options.gradient_accumulation_steps = 2;
  options.gradient_clipping = 0;
}

TEST(ConfigValidate, NamesTheKeyAndTheRemedy) {
  const struct {
    void (*spoil)(TrainOptions&);
    const char* expected;
  } cases[] = {
      {[](TrainOptions& o) { o.micro_batch = 0; }, "train_micro_batch_size_per_gpu is 0"},
      {[](TrainOptions& o) { o.gradient_accumulation_steps = 0; },
       "gradient_accumulation_steps is 0"},
      {[](TrainOptions& o) { o.rounds = 3; }, "spillway.rounds 3 does not divide"},
      {[](TrainOptions& o) { o.rounds = 0; }, "spillway.rounds is 0"},
      {[](TrainOptions& o) {
         o.gradient_accumulation_steps = 8;
         o.rounds = 2;
         o.sum_order = SumOrder::fixed;
       },
       "spillway.rounds is 2, and with spillway.sum_order fixed each of the 8"},
      {[](TrainOptions& o) { o.gradient_clipping = -1; }, "gradient_clipping is -1"},
      {[](TrainOptions& o) { o.gradient_clipping = std::nan(""); }, "gradient_clipping is nan"},
      {[](TrainOptions& o) { o.adam.beta1 = 1; }, "betas holds 1"},
      {[](TrainOptions& o) { o.adam.beta2 = -0.1; }, "betas holds -0.1"},
      {[](TrainOptions& o) { o.adam.eps = 0; }, "eps is 0"},
      {[](TrainOptions& o) { o.adam.eps = 1e-40; }, "eps is 1e-40"},
      // The first update adds eps x sqrt(1 - 0.999), which fp32 flushes to zero.
      {[](TrainOptions& o) { o.adam.eps = 3.7e-37; }, "it must be from 3.7e-37 to 1e30"},
      {[](TrainOptions& o) { o.adam.eps = 1.2e-38; }, "eps is 1.2e-38"},
      {[](TrainOptions& o) { o.steps = 1ULL << 32; },
       "spillway.steps is 4294967296; it must be a whole number from 0 to 4294967295"},
      {[](TrainOptions& o) { o.adam.weight_decay = HUGE_VAL; }, "weight_decay is inf"},
      {[](TrainOptions& o) { o.schedule.peak_lr = -1; }, "optimizer.params.lr is -1"},
      {[](TrainOptions& o) {
         o.schedule.kind = ScheduleKind::cosine;
         o.schedule.minimum_lr = 1;
       },
       "min_lr 1 is above the peak"},
      {[](TrainOptions& o) { o.loss_scale.window = 0; }, "fp16.loss_scale_window is 0"},
      {[](TrainOptions& o) { o.loss_scale.hysteresis = 0; }, "fp16.hysteresis is 0"},
      {[](TrainOptions& o) { o.loss_scale.initial = 1000; }, "must be a power of two"},
      {[](TrainOptions& o) { o.loss_scale.minimum = 0; }, "fp16.min_loss_scale is 0"},
      {[](TrainOptions& o) { o.loss_scale.minimum = 131072; }, "not above the initial scale 65536"},
      {[](TrainOptions& o) { o.loss_scale = {.dynamic = false, .initial = 0}; }, "loss_scale is 0"},
      {[](TrainOptions& o) { o.tile_parameters = 5000; }, "spillway.tile_parameters is 5000"},
      {[](TrainOptions& o) { o.tile_parameters = 0; }, "spillway.tile_parameters is 0"},
      {[](TrainOptions& o) { o.zero_stage = 4; }, "zero_optimization.stage is 4"},
      {[](TrainOptions& o) { o.host_link_gbps = 0; }, "spillway.host_link_gbps is 0"},
      {[](TrainOptions& o) { o.disk_gbps = HUGE_VAL; }, "spillway.disk_gbps is inf"},
      {[](TrainOptions& o) { o.nvme = {""}; }, "spillway.nvme holds an empty path"},
      {[](TrainOptions& o) {
         o.save_every = 1;
         o.keep = 0;
       },
       "spillway.keep is 0"},
      {[](TrainOptions& o) {
         o.update = UpdateMode::delayed;
         o.pipeline.stages = 2;
       },
       "delayed excludes pipeline.stages"},
      {[](TrainOptions& o) {
         o.update = UpdateMode::delayed;
         o.tensor.ranks = 2;
       },
       "delayed excludes tensor_parallel.autotp_size"},
      {[](TrainOptions& o) {
         o.update = UpdateMode::delayed;
         o.operator_tile = 4096;
       },
       "delayed excludes spillway.operator_tile"},
      {[](TrainOptions& o) {
         o.update = UpdateMode::delayed;
         o.state_home = StateHome::nvme;
       },
       "delayed excludes optimizer state on disk"},
      {[](TrainOptions& o) {
         o.update = UpdateMode::delayed;
         o.delayed_from = 0;
       },
       "spillway.delayed_from is 0"},
      {[](TrainOptions& o) { o.pipeline.chunks = 2; }, "spillway.pipeline_chunks is 2"},
      {[](TrainOptions& o) {
         o.pipeline.stages = 2;
         o.pipeline.parts = {1, 2, 3};
       },
       "spillway.pipeline_parts has 3 parts, and 2 stages with 1 chunks need 2"},
      {[](TrainOptions& o) {
         o.pipeline.stages = 2;
         o.pipeline.parts = {1, 0};
       },
       "spillway.pipeline_parts holds 0"},
      {[](TrainOptions& o) { o.pipeline.meet_every = 2; },
       "spillway.pipeline_meet_every is 2, and stages need not meet"},
      {[](TrainOptions& o) {
         meet_seldom(o);
         o.gradient_clipping = 1;
       },
       "spillway.pipeline_meet_every is 2, and gradient_clipping needs the norm"},
      {[](TrainOptions& o) {
         meet_seldom(o);
         o.compute = DType::fp16;
       },
       "spillway.pipeline_meet_every is 2, and the loss scale of fp16"},
  };
  for (const auto& each : cases) {
    TrainOptions options;
    each.spoil(options);
    const Error error = validate_error(options);
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << each.expected;
    EXPECT_THAT(error.what(), HasSubstr(each.expected));
  }
}

TEST(ConfigValidate, WhatAPipelineExcludesIsRefusedForItAlone) {
  struct Case {
    void (*choose)(TrainOptions&);
    std::string_view expected;
  };
  const Case cases[] = {
      {[](TrainOptions& o) { o.rounds = 3; }, "with pipeline.stages each of the 6 micro-batches"},
      {[](TrainOptions& o) { o.work_order = WorkOrder::micro_batch_major; }, "micro_batch_major"},
      {[](TrainOptions& o) { o.operator_tile = 4096; }, "remove spillway.operator_tile"},
      {[](TrainOptions& o) { o.secondary_ranks = 2; }, "zero_hpz_partition_size"},
      {[](TrainOptions& o) { o.pipeline.schedule = PipelineSchedule::interleaved; },
       "gradient_accumulation_steps is 6, and the schedule interleaved of 4 stages needs a "
       "multiple"},
  };
  for (const Case& each : cases) {
    TrainOptions options;
    options.gradient_accumulation_steps = 6;
    each.choose(options);
    EXPECT_NO_THROW(validate(options)) << each.expected;
    options.pipeline.stages = 4;
    EXPECT_THAT(validate_error(options).what(), HasSubstr(each.expected));
  }
}

TEST(ConfigValidate, ActivationsLeaveTheDeviceInPipelinesWithoutStaleWeights) {
  using enum PipelineSchedule;
  TrainOptions options;
  options.gradient_accumulation_steps = 4;
  options.pipeline.stages = 4;
  for (const StateHome home : {StateHome::host, StateHome::nvme}) {
    options.activations = home;
    for (const PipelineSchedule schedule : {naive, f_then_b, one_f_one_b, interleaved}) {
      options.pipeline.schedule = schedule;
      EXPECT_NO_THROW(validate(options));
    }
    options.pipeline.schedule = pipedream_2bw;
    EXPECT_THAT(validate_error(options).what(),
                HasSubstr("stay on the device with the schedule pipedream_2bw; remove "
                          "spillway.activations"));
  }
}

TEST(ConfigValidate, SavedActivationsOfOperatorTilesStayOnTheDevice) {
  TrainOptions options;
  options.operator_tile = 4096;
  for (const Checkpointing kept : {Checkpointing::automatic, Checkpointing::keep}) {
    options.checkpointing = kept;
    EXPECT_NO_THROW(validate(options));
  }
  for (const Checkpointing leaving : {Checkpointing::offload, Checkpointing::nvme}) {
    options.checkpointing = leaving;
    EXPECT_THAT(validate_error(options).what(),
                HasSubstr("with spillway.operator_tile saved activations stay on the device"));
  }
}

/// The least eps that is accepted is one that every update can add.
TEST(ConfigValidate, TheLeastEpsIsNotFlushedToZero) {
  for (const double beta2 : {0.0, 0.9, 0.99, 0.999, 0.9999}) {
    TrainOptions options;
    options.adam.beta2 = beta2;
    double refused = 1e-45;
    double accepted = 1;
    while (accepted / refused > 1.0001) {
      options.adam.eps = std::sqrt(refused * accepted);
      try {
        validate(options);
        accepted = options.adam.eps;
      } catch (const Error&) {
        refused = options.adam.eps;
      }
    }
    options.adam.eps = accepted;
    EXPECT_TRUE(std::isnormal(cpu_adam::make_scalars(options.adam, 1, 1).eps)) << beta2;
    options.adam.eps = accepted * 0.999;
    EXPECT_FALSE(std::isnormal(cpu_adam::make_scalars(options.adam, 1, 1).eps)) << beta2;
  }
}

TEST(ConfigValidate, StateFormatsWithoutAWholeMasterNeedBf16Parameters) {
  for (const std::string format : {"split", "bf16", "int8"}) {
    for (const std::string compute : {"fp32", "fp16", "bf16"}) {
      const TrainOptions options = test::options_of(R"({"spillway": {"state_format": ")" + format +
                                                    R"(", "compute": ")" + compute + "\"}}");
      if (compute == "bf16") {
        EXPECT_NO_THROW(validate(options)) << format;
        continue;
      }
      const Error error = validate_error(options);
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("spillway.state_format " + format));
    }
  }
}

TEST(ConfigValidate, SaysWhatATensorGroupExcludes) {
  struct Case {
    void (*spoil)(TrainOptions&);
    std::string_view expected;
  };
  const Case cases[] = {
      {[](TrainOptions& o) { o.work_order = WorkOrder::micro_batch_major; }, "micro_batch_major"},
      {[](TrainOptions& o) { o.operator_tile = 4096; }, "operator_tile excludes"},
      {[](TrainOptions& o) { o.secondary_ranks = 2; }, "zero_hpz_partition_size"},
      {[](TrainOptions& o) { o.tensor = {.ranks = 1, .sequence = true}; },
       "sequence_parallel shares out tokens"},
  };
  for (const auto& each : cases) {
    TrainOptions options;
    options.tensor.ranks = 2;
    each.spoil(options);
    const Error error = validate_error(options);
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << each.expected;
    EXPECT_THAT(error.what(), HasSubstr(each.expected));
  }
}

}  // namespace
}  // namespace spillway::config::config_validate_test
