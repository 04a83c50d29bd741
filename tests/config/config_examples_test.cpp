// Configurations as people have them for DeepSpeed and the Hugging Face Trainer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/config/config_test_support.hpp"

namespace spillway::config::config_examples_test {
namespace {

using test::example;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

ParsedConfig parse_example(const std::string& name) {
  ParsedConfig parsed = parse_train_config(example(name), name);
  validate(parsed.options);
  return parsed;
}

TEST(ConfigExamples, ZeroOffloadWithCommentsIsReadAsItIs) {
  const auto [options, notes] = parse_example("zero2_offload_fp16.json");
  EXPECT_EQ(options.micro_batch, 4U);
  EXPECT_EQ(options.gradient_accumulation_steps, 8U);
  EXPECT_EQ(options.zero_stage, 2U);
  EXPECT_EQ(options.state_home, StateHome::host);
  EXPECT_EQ(options.residency, Residency::automatic);
  EXPECT_EQ(options.compute, DType::fp16);
  EXPECT_TRUE(options.loss_scale.dynamic);
  EXPECT_EQ(options.loss_scale.initial, 65536);
  EXPECT_EQ(options.gradient_clipping, 1.0);
  EXPECT_EQ(options.adam.decay_mode, cpu_adam::DecayMode::decoupled);
  EXPECT_EQ(options.adam.beta2, 0.95);
  EXPECT_EQ(options.adam.weight_decay, 0.1);
  EXPECT_EQ(options.schedule.kind, ScheduleKind::constant);
  EXPECT_EQ(options.schedule.peak_lr, 3e-4);
  EXPECT_EQ(options.schedule.warmup_steps, 0U);
  EXPECT_THAT(notes, Contains(HasSubstr("zero_optimization.offload_param: ignored below stage 3")));
  EXPECT_THAT(notes, Contains(HasSubstr("zero_optimization.overlap_comm: not needed")));
  EXPECT_THAT(notes, Contains(HasSubstr("offload_optimizer.pin_memory: not needed")));
  EXPECT_THAT(notes, Contains(HasSubstr("steps_per_print: not needed")));
  for (const std::string& note : notes) EXPECT_THAT(note, Not(HasSubstr("\n")));
}

TEST(ConfigExamples, TrainerTemplateIsTakenAsItIs) {
  const auto [options, notes] = parse_example("trainer_zero3_auto.json");
  EXPECT_TRUE(options.automatic.compute);
  EXPECT_TRUE(options.automatic.fp16);
  EXPECT_TRUE(options.automatic.micro_batch);
  EXPECT_TRUE(options.automatic.accumulation);
  EXPECT_EQ(options.schedule.peak_lr, 5e-5);
  EXPECT_EQ(options.schedule.warmup_steps, 0U);
  EXPECT_EQ(options.gradient_clipping, 1);
  EXPECT_EQ(options.adam.weight_decay, 0);
  EXPECT_THAT(notes, Contains("optimizer.params.lr: \"auto\" is 5e-05, HF Trainer's"));
}

TEST(ConfigExamples, TrainerFileWithNumbersResolvesTheOtherAutos) {
  const auto [options, notes] = parse_example("trainer_zero3_numbers.json");
  EXPECT_EQ(options.micro_batch, 16U);
  EXPECT_EQ(options.gradient_accumulation_steps, 4U);  // from train_batch_size
  EXPECT_EQ(options.compute, DType::bf16);
  EXPECT_EQ(options.state_home, StateHome::host);
  EXPECT_EQ(options.residency, Residency::none);
  EXPECT_EQ(options.adam.beta1, 0.9);
  EXPECT_EQ(options.adam.beta2, 0.999);
  EXPECT_EQ(options.adam.eps, 1e-8);
  EXPECT_EQ(options.schedule.kind, ScheduleKind::warmup_decay_lr);
  EXPECT_EQ(options.schedule.peak_lr, 5e-5);
  EXPECT_EQ(options.schedule.warmup_steps, 100U);
  EXPECT_TRUE(options.schedule.warmup_logarithmic);
  EXPECT_EQ(options.schedule.total_steps, 0U);  // the run's
  EXPECT_THAT(notes, Contains("fp16.enabled: \"auto\" is false: the type is bf16"));
  EXPECT_THAT(notes, Contains("optimizer.params.eps: \"auto\" is 1e-08"));
  EXPECT_THAT(notes, Contains("gradient_clipping: \"auto\" is 1"));
}

TEST(ConfigExamples, ZeroInfinityGoesToDisk) {
  const auto [options, notes] = parse_example("infinity_nvme.json");
  EXPECT_EQ(options.micro_batch, 8U);
  EXPECT_EQ(options.gradient_accumulation_steps, 4U);
  EXPECT_EQ(options.zero_stage, 3U);
  EXPECT_EQ(options.state_home, StateHome::nvme);
  EXPECT_EQ(options.nvme, std::vector<std::filesystem::path>{"/local_nvme"});
  EXPECT_EQ(options.residency, Residency::none);
  EXPECT_EQ(options.loss_scale.initial, 4096);
  EXPECT_EQ(options.adam.decay_mode, cpu_adam::DecayMode::l2);
  EXPECT_EQ(options.checkpointing, Checkpointing::automatic);
  EXPECT_EQ(options.activations, StateHome::host);  // cpu_checkpointing
  EXPECT_THAT(notes, Contains(HasSubstr("aio: not needed")));
  EXPECT_THAT(notes, Contains(HasSubstr("offload_param.nvme_path: 16-bit parameters stream")));
}

TEST(ConfigExamples, TutorialOfStageZero) {
  const auto [options, notes] = parse_example("tutorial_stage0.json");
  EXPECT_EQ(options.micro_batch, 16U);
  EXPECT_EQ(options.gradient_accumulation_steps, 1U);
  EXPECT_EQ(options.loss_scale.initial, 32768);
  EXPECT_EQ(options.loss_scale.window, 500U);
  EXPECT_EQ(options.state_home, StateHome::automatic);
  EXPECT_EQ(options.schedule.kind, ScheduleKind::warmup_lr);
  EXPECT_EQ(options.schedule.warmup_steps, 1000U);
  EXPECT_TRUE(options.schedule.warmup_logarithmic);
}

TEST(ConfigExamples, MonitorsAndSwitchedOffFeaturesDoNotMatter) {
  const auto [options, notes] = parse_example("chat_bf16_monitors.json");
  EXPECT_EQ(options.compute, DType::bf16);
  EXPECT_EQ(options.state_home, StateHome::device);
  EXPECT_EQ(options.schedule.kind, ScheduleKind::warmup_cosine_lr);
  EXPECT_FALSE(options.schedule.warmup_logarithmic);
  EXPECT_DOUBLE_EQ(options.schedule.warmup_min_ratio * options.schedule.optimizer_lr, 9.65e-7);
  EXPECT_DOUBLE_EQ(options.schedule.cosine_min_ratio * options.schedule.optimizer_lr, 4.825e-7);
  EXPECT_EQ(options.schedule.total_steps, 5000U);
  EXPECT_THAT(notes, Not(Contains(HasSubstr("wandb"))));  // it is off
  EXPECT_FALSE(options.tensorboard.enabled);
  EXPECT_EQ(options.tensorboard.job_name, "sft");
}

}  // namespace
}  // namespace spillway::config::config_examples_test
