// Activations off the device, at the boundaries of layers and those that blocks save: the same bits
// from anywhere, as few bytes as planned.
#include <gtest/gtest.h>

#include <ostream>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/saved_activations.hpp"
#include "tests/engine/damaging_engine.hpp"
#include "tests/engine/expect_memory.hpp"
#include "tests/engine/steady_state.hpp"
#include "tests/engine/training_harness.hpp"

namespace spillway::engine::leaving_activations_test {
namespace {

using plan::Tier;

/// Rounds of as many micro-batches, parameters streamed and activations recomputed.
config::TrainOptions options_of(std::uint32_t micro_batches, std::uint32_t rounds) {
  config::TrainOptions options = tiny_options();
  options.compute = DType::bf16;
  options.micro_batch = 1;
  options.gradient_accumulation_steps = micro_batches * rounds;
  options.rounds = rounds;
  options.state_home = config::StateHome::host;
  options.residency = config::Residency::none;
  options.checkpointing = config::Checkpointing::recompute;
  return options;
}

/// With an operator tile, layers of several blocks, of which the embedding's are the head's too.
model::ModelConfig tied_llama() {
  model::ModelConfig config = tiny_llama(3);
  config.tied_head = true;
  return config;
}

constexpr std::optional<Tier> kRecomputed, kKept{Tier::device}, kOffloaded{Tier::host},
    kOnDisk{Tier::nvme};

/// Homes by block, the last again for all that follow.
struct Spread {
  std::vector<Tier> boundaries{Tier::device};
  std::uint32_t boundary_slots = 2;
  std::uint32_t boundary_staging = 1;
  std::vector<std::optional<Tier>> saved{kRecomputed};
  std::uint32_t saved_slots = 2;
  std::uint32_t saved_staging = 1;
};

auto adjusted(const Spread& spread) {
  return [spread](const plan::Workload&, plan::Placement& placement) {
    for (std::size_t b = 0; b + 1 < placement.blocks.size(); ++b) {
      placement.blocks[b].output = spread.boundaries[std::min(b, spread.boundaries.size() - 1)];
      placement.blocks[b].saved = spread.saved[std::min(b, spread.saved.size() - 1)];
    }
    const bool saved_leave = placement.any_saved(Tier::host) || placement.any_saved(Tier::nvme);
    placement.boundary_slots = spread.boundary_slots;
    placement.boundary_staging = spread.boundary_staging;
    placement.saved_slots = saved_leave ? spread.saved_slots : 0;
    placement.saved_staging = placement.any_saved(Tier::nvme) ? spread.saved_staging : 0;
  };
}

/// What leaves the device, in many ways.
struct Leaving {
  plan::ValueKind what;
  std::vector<Spread> spreads;
  std::pair<Bytes, Bytes> (*traffic)(const plan::Workload&, const plan::Placement&);
  std::size_t on_disk;              ///< a spread with all of them on the disk
  std::size_t resumed;              ///< a spread to go on with
  std::vector<std::size_t> steady;  ///< spreads of which steps are watched
};

const Leaving& boundaries() {
  static const Leaving all{
      .what = plan::ValueKind::boundary,
      .spreads =
          {
              {.boundaries = {Tier::host}, .boundary_slots = 1},
              {.boundaries = {Tier::host}, .boundary_slots = 2},
              {.boundaries = {Tier::host}, .boundary_slots = 5},
              {.boundaries = {Tier::host}, .boundary_slots = 4, .saved = {kKept}},
              {.boundaries = {Tier::nvme}, .boundary_slots = 1},
              {.boundaries = {Tier::nvme}, .boundary_slots = 2},
              {.boundaries = {Tier::nvme}, .boundary_slots = 3, .boundary_staging = 3},
              {.boundaries = {Tier::nvme, Tier::host, Tier::device},
               .boundary_slots = 4,
               .boundary_staging = 2},
              {.boundaries = {Tier::device, Tier::nvme}, .boundary_slots = 6, .saved = {kKept}},
              {.boundaries = {Tier::device}},
          },
      .traffic =
          [](const plan::Workload& workload, const plan::Placement& placement) {
            const plan::ActivationTraffic traffic = plan::boundary_traffic(workload, placement);
            return std::pair(traffic.saved, traffic.spilled);
          },
      .on_disk = 4,
      .resumed = 1,
      .steady = {1, 5}};
  return all;
}

const Leaving& saved_activations() {
  static const Leaving all{
      .what = plan::ValueKind::saved,
      .spreads =
          {
              {.saved = {kKept}},
              {.saved = {kOffloaded}},
              {.saved = {kOffloaded}, .saved_slots = 3},
              {.saved = {kOffloaded}, .saved_slots = 7},
              {.saved = {kRecomputed, kOffloaded, kKept}},
              {.saved = {kKept, kKept, kOffloaded, kRecomputed}, .saved_slots = 4},
              {.boundaries = {Tier::host}, .boundary_slots = 3, .saved = {kOffloaded}},
              {.boundaries = {Tier::host},
               .boundary_slots = 3,
               .saved = {kOffloaded},
               .saved_slots = 3},
              {.boundaries = {Tier::nvme},
               .boundary_slots = 3,
               .boundary_staging = 2,
               .saved = {kRecomputed, kRecomputed, kOffloaded}},
              {.saved = {kOnDisk}},
              {.saved = {kOnDisk, kOnDisk, kOffloaded, kOnDisk},
               .saved_slots = 3,
               .saved_staging = 3},
              {.boundaries = {Tier::nvme},
               .boundary_slots = 3,
               .boundary_staging = 2,
               .saved = {kRecomputed, kOnDisk, kKept},
               .saved_slots = 4,
               .saved_staging = 2},
          },
      .traffic =
          [](const plan::Workload& workload, const plan::Placement& placement) {
            const plan::ActivationTraffic traffic =
                plan::saved_activations_traffic(workload, placement);
            return std::pair(traffic.saved, traffic.spilled);
          },
      .on_disk = 9,
      .resumed = 4,
      .steady = {1, 6, 11}};
  return all;
}

/// Whose activations they are.
struct Owner {
  const Leaving& (*leaving)();
  model::ModelConfig model, other;
  std::uint64_t operator_tile = 0;
};

void PrintTo(const Owner& owner, std::ostream* out) { *out << "tile " << owner.operator_tile; }

class Activations : public testing::TestWithParam<Owner> {
 protected:
  [[nodiscard]] static const Leaving& leaving() { return GetParam().leaving(); }
  [[nodiscard]] static config::TrainOptions own_options(std::uint32_t micro_batches,
                                                        std::uint32_t rounds) {
    config::TrainOptions options = options_of(micro_batches, rounds);
    options.operator_tile = GetParam().operator_tile;
    return options;
  }
  [[nodiscard]] auto spread(std::size_t i) const { return adjusted(leaving().spreads[i]); }
  TrainingHarness harness{GetParam().model}, other{GetParam().other};
};

INSTANTIATE_TEST_SUITE_P(Boundaries, Activations,
                         testing::Values(Owner{boundaries, tiny_gpt2(), tiny_llama()},
                                         Owner{boundaries, tied_llama(), tied_llama(), 1500}));
INSTANTIATE_TEST_SUITE_P(Saved, Activations,
                         testing::Values(Owner{saved_activations, tiny_gpt2(), tiny_llama()}));

TEST_P(Activations, HaveTheBitsOfTheDeviceFromAnySpreadAndNumberOfSlots) {
  for (const config::WorkOrder order :
       {config::WorkOrder::layer_major, config::WorkOrder::micro_batch_major}) {
    for (const std::uint32_t rounds : {1U, 3U}) {
      config::TrainOptions options = own_options(3, rounds);
      options.work_order = order;
      harness.adjust_placement = {};
      const Outcome device = harness.train(options, 4);
      for (std::size_t i = 0; i < leaving().spreads.size(); ++i) {
        harness.adjust_placement = spread(i);
        EXPECT_EQ(harness.train(options, 4), device)
            << "spread " << i << ", rounds " << rounds << ", order " << static_cast<int>(order);
      }
    }
  }
}

TEST_P(Activations, LeaveTheSameLossToAnEvaluationWhichMovesNone) {
  const config::TrainOptions options = own_options(3, 1);
  const auto loss = [&] {
    const auto trainer = other.make(options, other.new_run());
    Outcome outcome;
    other.steps(*trainer, options, 2, outcome);
    const plan::Copy down{leaving().what, Tier::device, Tier::host};
    const Bytes before = trainer->engine().actions().moved(down);
    const double first = trainer->evaluate(other.tokens()).loss;
    EXPECT_EQ(trainer->engine().actions().moved(down), before);
    other.steps(*trainer, options, 1, outcome);
    EXPECT_NE(trainer->evaluate(other.tokens()).loss, first);
    return first;
  };
  const double device = loss();
  for (std::size_t i = 0; i < leaving().spreads.size(); ++i) {
    other.adjust_placement = spread(i);
    EXPECT_EQ(loss(), device) << "spread " << i;
  }
}

TEST_P(Activations, MayBeElsewhereWhereARunResumes) {
  const config::TrainOptions options = own_options(2, 2);
  const Outcome whole = other.train(options, 6);
  Outcome outcome;
  const std::filesystem::path run = other.new_run();
  const std::filesystem::path file = run / "state" / "activations-0.swap";
  other.adjust_placement = spread(leaving().on_disk);
  {
    const auto trainer = other.make(options, run);
    other.steps(*trainer, options, 3, outcome);
    trainer->cycle().commit();
    EXPECT_TRUE(std::filesystem::exists(file));
  }
  // They are nothing to resume from: the file goes with the process that wrote it.
  EXPECT_FALSE(std::filesystem::exists(file));
  other.adjust_placement = spread(leaving().resumed);
  const auto trainer = other.make(options, run, true);
  other.steps(*trainer, options, 3, outcome);
  other.finish(*trainer, outcome);
  EXPECT_EQ(outcome, whole);
}

TEST_P(Activations, ThatTheDiskGivesBackOtherwiseStopTheRun) {
  harness.adjust_placement = spread(leaving().on_disk);
  expect_stopped_by_a_flipped_bit(harness, own_options(3, 1));
}

TEST_P(Activations, MoveWhatTheFormulasSay) {
  const config::TrainOptions options = own_options(3, 2);
  for (std::size_t i = 0; i < leaving().spreads.size(); ++i) {
    SCOPED_TRACE(i);
    other.adjust_placement = spread(i);
    const auto trainer = other.make(options, other.new_run());
    Outcome outcome;
    constexpr std::uint64_t kSteps = 3;
    other.steps(*trainer, options, kSteps, outcome);
    const auto [link, disk] =
        leaving().traffic(trainer->engine().workload(), trainer->engine().placement());
    const auto expect_moved = [&](Tier from, Tier to, Bytes bytes) {
      const plan::Copy copy{leaving().what, from, to};
      EXPECT_EQ(trainer->engine().actions().moved(copy), bytes * kSteps);
      EXPECT_EQ(plan::bytes_moved(trainer->cycle().lists().step_plan(), copy), bytes);
    };
    expect_moved(Tier::device, Tier::host, link);
    expect_moved(Tier::host, Tier::device, link);
    expect_moved(Tier::host, Tier::nvme, disk);
    expect_moved(Tier::nvme, Tier::host, disk);
  }
}

TEST_P(Activations, TakeExactlyTheMemoryThatThePlanLists) {
  for (std::size_t i = 0; i < leaving().spreads.size(); ++i) {
    harness.adjust_placement = spread(i);
    expect_memory_as_planned(*harness.make(own_options(4, 1), harness.new_run()));
  }
}

TEST_P(Activations, AllocateNothingAndOpenNothingInTheSteadyState) {
  if (!test_support::AllocationCounter::works()) GTEST_SKIP() << "a sanitizer owns operator new";
  for (const std::size_t i : leaving().steady) {
    harness.adjust_placement = spread(i);
    expect_steady(harness, own_options(3, 2));
  }
}

TEST(BoundaryMemory, MoreBoundariesThanTheDeviceHoldsTrainInItsBudget) {
  TrainingHarness harness(tiny_llama(6));
  config::TrainOptions options = options_of(64, 1);
  const auto device_need = [&](config::StateHome activations) {
    options.activations = activations;
    ModelRuntime model = make_model_runtime(harness.config(), options);
    const plan::Workload workload = make_workload(harness.config(), *model.transformer, options);
    const plan::Placement placement =
        place(harness.config(), options, workload, plan::Budgets{1_GiB, 1_GiB, 1_GiB});
    return plan::total(plan::memory_items(workload, placement), Tier::device);
  };
  const Bytes all = device_need(config::StateHome::device);
  const Outcome device = harness.train(options, 2);
  // Half of what the boundaries of 64 micro-batches take, then what passes alone.
  for (const Bytes budget : {all - 300_KiB, device_need(config::StateHome::host)}) {
    options.activations = config::StateHome::automatic;
    options.device_memory = budget;
    const auto trainer = harness.make(options, harness.new_run());
    EXPECT_TRUE(trainer->engine().placement().any_output(Tier::host));
    Outcome outcome;
    harness.steps(*trainer, options, 2, outcome);
    harness.finish(*trainer, outcome);
    EXPECT_EQ(outcome, device);
    EXPECT_LE(trainer->engine().backend().usage(offload::MemoryKind::device).high_water, budget);
  }
}

TEST(SavedActivationsExactness, ManyMicroBatchesThroughTwoSlotsGiveTheBitsOfTheDevice) {
  const config::TrainOptions options = options_of(9, 2);
  TrainingHarness harness(tiny_llama(4));
  const Outcome device = harness.train(options, 3);
  for (const std::size_t spread : {1U, 9U}) {
    harness.adjust_placement = adjusted(saved_activations().spreads[spread]);
    EXPECT_EQ(harness.train(options, 3), device);
  }
}

TEST(SavedActivationsMemory, WhatTheDeviceCannotKeepTrainsInItsBudget) {
  TrainingHarness harness(tiny_llama(6));
  config::TrainOptions options = options_of(16, 1);
  const Outcome recomputed = harness.train(options, 2);
  options.checkpointing = config::Checkpointing::keep;
  ModelRuntime model = make_model_runtime(harness.config(), options);
  const plan::Workload workload = make_workload(harness.config(), *model.transformer, options);
  const plan::Budgets plenty{1_GiB, 1_GiB, 1_GiB};
  const plan::Placement kept = place(harness.config(), options, workload, plenty);
  const Bytes saved = workload.blocks[1].saved_bytes;
  // All six layers' do not fit, those of three do.
  options.device_memory =
      plan::total(plan::memory_items(workload, kept), Tier::device) - saved * (3ULL * 16);
  options.activations = config::StateHome::device;
  EXPECT_THROW((void)harness.make(options, harness.new_run()), Error);
  for (const auto& [checkpointing, home] : {std::pair{config::Checkpointing::offload, Tier::host},
                                            std::pair{config::Checkpointing::nvme, Tier::nvme}}) {
    options.checkpointing = checkpointing;
    const auto trainer = harness.make(options, harness.new_run());
    EXPECT_EQ(trainer->engine().placement().blocks[1].saved, home);
    EXPECT_EQ(trainer->engine().placement().blocks[6].saved, Tier::device);
    Outcome outcome;
    harness.steps(*trainer, options, 2, outcome);
    harness.finish(*trainer, outcome);
    EXPECT_EQ(outcome, recomputed);
    EXPECT_LE(trainer->engine().backend().usage(offload::MemoryKind::device).high_water,
              *options.device_memory);
  }
}

}  // namespace
}  // namespace spillway::engine::leaving_activations_test
