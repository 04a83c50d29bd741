// The machine profile: measured once, kept, and never in the way.
#include "runtime/engine/machine/machine_tuning.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <variant>

#include "runtime/engine/machine/calibrate.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/search/choose.hpp"
#include "tests/engine/training_harness.hpp"
#include "tests/support/environment.hpp"

namespace spillway::engine::machine_tuning_test {
namespace {

class MachineProfileFile : public testing::Test {
 protected:
  /// The distance that a tuning of its own knows or measures; counts the measurements.
  std::size_t prefetch(const cpu_adam::Kernel& kernel, std::size_t threads = 2) {
    MachineTuning tuning(file_);
    return tuning.prefetch(kernel, threads, [this] {
      ++measured_;
      return std::size_t{512};
    });
  }
  std::size_t depth(nvme_swap::EngineKind engine) {
    MachineTuning tuning(file_);
    return tuning
        .drive(scratch_.path(), engine,
               [this] {
                 ++measured_;
                 return nvme_swap::DriveTuning{.engine = "uring",
                                               .direct = true,
                                               .queue_depth = 5,
                                               .transfer_bytes = 2_MiB,
                                               .read_gbps = 3,
                                               .write_gbps = 1,
                                               .mixed_gbps = 2};
               })
        .queue_depth;
  }

  ScratchDirectory scratch_{"machine-profile"};
  std::filesystem::path file_ = scratch_.path() / "made/for/it/machine.json";
  int measured_ = 0;
  const cpu_adam::Kernel& kernel_ = cpu_adam::kernels().front();
};

TEST_F(MachineProfileFile, IsMeasuredOnce) {
  EXPECT_EQ(prefetch(kernel_), 512U);
  EXPECT_EQ(prefetch(kernel_), 512U);
  EXPECT_EQ(depth(nvme_swap::EngineKind::uring), 5U);
  EXPECT_EQ(depth(nvme_swap::EngineKind::uring), 5U);
  EXPECT_EQ(measured_, 2);
}

TEST_F(MachineProfileFile, KeepsNothingThatIsForOneRunOnly) {
  MachineTuning tuning(file_);
  const auto measure = [this] { return static_cast<std::size_t>(++measured_); };
  EXPECT_EQ(tuning.prefetch(kernel_, 2, measure, Keep::no), 1U);
  EXPECT_EQ(tuning.prefetch(kernel_, 2, measure, Keep::no), 2U);
  EXPECT_FALSE(std::filesystem::exists(file_));
  EXPECT_EQ(tuning.prefetch(kernel_, 2, measure), 3U);
  EXPECT_EQ(tuning.prefetch(kernel_, 2, measure, Keep::no), 3U) << "what is known is taken";
}

TEST_F(MachineProfileFile, KnowsKernelsThreadsAndEnginesApart) {
  for (const cpu_adam::Kernel& kernel : cpu_adam::kernels()) prefetch(kernel);
  EXPECT_EQ(static_cast<std::size_t>(measured_), cpu_adam::kernels().size());
  prefetch(kernel_, 3);
  depth(nvme_swap::EngineKind::uring);
  depth(nvme_swap::EngineKind::posix);
  EXPECT_EQ(static_cast<std::size_t>(measured_), cpu_adam::kernels().size() + 3);
}

TEST_F(MachineProfileFile, IsMeasuredAnewWhenDamaged) {
  prefetch(kernel_);
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) / 2);
  EXPECT_EQ(prefetch(kernel_), 512U);
  EXPECT_EQ(measured_, 2);
  EXPECT_EQ(prefetch(kernel_), 512U);
  EXPECT_EQ(measured_, 2);  // the new one is whole
}

TEST_F(MachineProfileFile, ThatCannotBeWrittenCostsOnlyTheMeasurement) {
  std::ofstream(scratch_.path() / "made") << "a file where the directory would be";
  EXPECT_EQ(prefetch(kernel_), 512U);
  file_.clear();  // none is wanted
  EXPECT_EQ(prefetch(kernel_), 512U);
  EXPECT_EQ(measured_, 2);
}

TEST_F(MachineProfileFile, ForgetsWhatItIsToMeasureAgain) {
  prefetch(kernel_);
  MachineTuning tuning(file_);
  tuning.forget();
  EXPECT_EQ(tuning.prefetch(kernel_, 2, [] { return std::size_t{128}; }), 128U);
  EXPECT_EQ(prefetch(kernel_), 128U);
}

TEST(TunedStore, TakesWhatSuitsAllDrives) {
  const nvme_swap::DriveTuning fast{.queue_depth = 12, .transfer_bytes = 4_MiB, .mixed_gbps = 3};
  const nvme_swap::DriveTuning slow{.queue_depth = 2, .transfer_bytes = 1_MiB, .mixed_gbps = 1};
  nvme_swap::StoreOptions options;
  tune_store({fast, slow}, options);
  EXPECT_EQ(options.queue_depth, 20U);  // no drive gets less than eight
  EXPECT_EQ(options.transfer_bytes, 1_MiB);
  const nvme_swap::StoreOptions plain;
  nvme_swap::StoreOptions untouched;
  tune_store({}, untouched);
  EXPECT_EQ(untouched.queue_depth, plain.queue_depth);
}

TEST(DiskWeights, AreThoseOfTheDrivesWhereEveryTileWithSlotsHasRoom) {
  const ScratchDirectory scratch("disk-weights");
  plan::Workload workload;
  workload.blocks.resize(2);
  workload.blocks[0].padded_parameters = workload.blocks[1].padded_parameters =
      ElementCount{kLeafParameters};
  const DriveTunings drives{{.mixed_gbps = 6}, {.mixed_gbps = 2}};
  plan::Placement placement;
  placement.blocks = {{.state = plan::Tier::host}, {.state = plan::Tier::nvme}};
  const auto weights_of = [&](const DriveTunings& known) {
    return disk_weights(known, std::vector{scratch.path(), scratch.path()},
                        plan::slots_on_disk(workload, placement));
  };
  const std::vector<double> weights = weights_of(drives);
  ASSERT_EQ(weights.size(), 2U);
  EXPECT_DOUBLE_EQ(weights[0], 3 * weights[1]);
  EXPECT_TRUE(weights_of({}).empty());

  // No disk has room for the first block, which has slots there only if steps are committed.
  workload.blocks[0].padded_parameters = ElementCount{kLeafParameters << 40};
  EXPECT_TRUE(weights_of(drives).empty());
  placement.commits = false;
  EXPECT_EQ(weights_of(drives), weights);
  placement.blocks[0].state = plan::Tier::nvme;
  EXPECT_TRUE(weights_of(drives).empty());
}

/// The least memory of each kind in which the planner places the workload.
plan::Budgets least_budgets(const plan::Workload& workload, const plan::PlacementRequest& request) {
  plan::Budgets budgets{.device = {}, .host = {}, .nvme = 1_GiB};
  for (;;) {
    const auto choice = plan::choose_placement(workload, budgets, request);
    const auto* const lacks = std::get_if<plan::Shortage>(&choice);
    if (lacks == nullptr) return budgets;
    (lacks->tier == plan::Tier::device ? budgets.device : budgets.host) = lacks->needed;
  }
}

/// Options of any run of these models that the planner can place.
config::TrainOptions random_options(std::mt19937_64& random, const model::ModelConfig& config) {
  const auto any = [&random](const auto& list) { return list[random() % std::size(list)]; };
  config::TrainOptions options = tiny_options();
  options.compute = any(std::array{DType::fp32, DType::bf16});
  options.micro_batch = any(std::array{1U, 2U, 4U});
  options.rounds = any(std::array{1U, 2U, 4U});
  options.checkpointing =
      any(std::array{config::Checkpointing::automatic, config::Checkpointing::recompute,
                     config::Checkpointing::keep, config::Checkpointing::offload});
  options.residency = any(std::array{config::Residency::automatic, config::Residency::all});
  options.state_home =
      any(std::array{config::StateHome::device, config::StateHome::host, config::StateHome::nvme});
  if (options.state_home != config::StateHome::device && random() % 2 == 0) {
    options.residency = config::Residency::none;
  }
  const bool whole = config.is_gpt2() || options.checkpointing == config::Checkpointing::offload;
  options.operator_tile = whole ? 0 : any(std::array{0U, 8192U, 16384U});
  options.activations = any(
      std::array{config::StateHome::automatic, config::StateHome::host, config::StateHome::nvme});
  resolve(options, config);
  return options;
}

/// Of a host's device whose state is on disk.
void expect_all_measured(const plan::MachineProfile& profile) {
  const plan::CoreShares& cores = profile.cores;
  for (const double measured :
       {profile.d2h, profile.nvme_read, profile.nvme_combined, profile.wake_seconds, cores.compute,
        cores.update, cores.copy, cores.disk, profile.disk.checksum, profile.disk.commit_seconds}) {
    EXPECT_GT(measured, 0);
  }
  for (const plan::Pace& pace :
       {profile.paces.compute, profile.paces.link, profile.paces.update, profile.paces.disk}) {
    EXPECT_LT(pace.slow, pace.fast);  // no two of dozens of timings are the same
  }
}

TEST(Calibration, FitsTheLeastMemoryThatARunFits) {
  const ScratchDirectory scratch("calibration");
  std::mt19937_64 random(test_support::test_seed());
  for (int sample = 0; sample < 20; ++sample) {
    const std::uint32_t layers = 1 + static_cast<std::uint32_t>(random() % 3);
    const model::ModelConfig config = random() % 2 == 0 ? tiny_gpt2(layers) : tiny_llama(layers);
    const config::TrainOptions options = random_options(random, config);
    const ModelRuntime model = make_model_runtime(config, options);
    const plan::Workload workload = make_workload(config, *model.transformer, options);
    const plan::Budgets budgets = least_budgets(workload, placement_request(options));
    const plan::MachineProfile profile = calibrate({.config = config,
                                                    .options = options,
                                                    .model = model,
                                                    .workload = workload,
                                                    .budgets = budgets,
                                                    .state_directories = {{scratch.path()}}},
                                                   {}, [](const std::string&) {});
    EXPECT_GT(profile.gpu_flops, 0) << sample;
    EXPECT_GT(profile.h2d, 0) << sample;
    EXPECT_GT(profile.update, 0) << sample;
    EXPECT_GT(profile.nvme_write, 0) << sample;
    expect_all_measured(profile);
  }
}

}  // namespace
}  // namespace spillway::engine::machine_tuning_test
