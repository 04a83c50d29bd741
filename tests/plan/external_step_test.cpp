// Plans of steps whose passes another framework runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "runtime/plan/step/check.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::plan::external_step_test {
namespace {

struct External {
  Workload workload;
  Placement placement;
};

External external(std::uint32_t blocks, Tier state, std::uint32_t rounds = 1) {
  External e;
  e.workload.external = true;
  e.workload.compute = DType::bf16;
  e.workload.rounds = rounds;
  for (std::uint32_t b = 0; b < blocks; ++b) {
    BlockShape& block = e.workload.blocks.emplace_back();
    block.parameters = block.padded_parameters = ElementCount{kLeafParameters * (b + 1)};
  }
  e.placement.blocks.assign(blocks, {.state = state});
  e.placement.format = StateFormat::split;
  e.placement.tile_parameters = ElementCount{2 * kLeafParameters};
  e.placement.state_slots = 2;
  return e;
}

OpIndex find(const StepPlan& plan, OpKind kind, Lane lane, std::uint32_t block) {
  const auto op = std::ranges::find_if(
      plan.ops, [&](const Op& o) { return o.kind == kind && o.lane == lane && o.block == block; });
  EXPECT_NE(op, plan.ops.end());
  return static_cast<OpIndex>(op - plan.ops.begin());
}

TEST(ExternalStep, EveryPlanIsFreeOfRacesAndFindsTheRightContent) {
  for (const Tier state : {Tier::host, Tier::nvme}) {
    for (const std::uint32_t blocks : {1U, 2U, 7U}) {
      for (const std::uint32_t rounds : {1U, 2U}) {
        const auto [workload, placement] = external(blocks, state, rounds);
        for (const StepPlan& plan :
             {build_training_step(workload, placement), build_recorded_step(workload, placement),
              build_flush(workload, placement), build_snapshot(workload, placement)}) {
          EXPECT_EQ(find_race(plan), "") << to_text(plan);
          EXPECT_EQ(find_wrong_content(plan), "") << to_text(plan);
        }
      }
    }
  }
}

TEST(ExternalStep, StreamedParametersComeInEveryPassAndSlotsAreUsedAgainOnceLeft) {
  for (const std::uint32_t slots : {1U, 2U, 3U}) {
    auto [workload, placement] = external(5, Tier::nvme);
    workload.streams_external = true;
    placement.parameter_slots = slots;
    placement.blocks[0].parameters = Tier::device;
    for (const StepPlan& plan :
         {build_training_step(workload, placement), build_external_backward(workload, placement),
          build_external_norms(workload, placement), build_flush(workload, placement)}) {
      EXPECT_EQ(find_race(plan), "") << to_text(plan);
      EXPECT_EQ(find_wrong_content(plan), "") << to_text(plan);
    }
    const StepPlan backward = build_external_backward(workload, placement);
    // Blocks 1 to 4 have 2 to 5 leaves.
    EXPECT_EQ(bytes_moved(backward, kUploadParams), Bytes{14 * kLeafParameters * 2});
    const OpIndex last = find(backward, OpKind::copy, Lane::h2d, 1);
    const auto dependencies = backward.dependencies_of(backward.ops[last]);
    ASSERT_EQ(dependencies.size(), 1U);
    EXPECT_EQ(backward.ops[dependencies.front()].block, 1 + slots);
  }
}

TEST(ExternalStep, WhatIsFrozenIsUploadedInEveryPassAndHasNoUpdate) {
  for (const std::uint32_t slots : {1U, 3U}) {
    auto [workload, placement] = external(5, Tier::nvme);
    workload.streams_external = true;
    workload.resident_frozen_bytes = Bytes{500};
    placement.parameter_slots = slots;
    placement.blocks[0].parameters = Tier::device;
    // One is wholly frozen, one partly.
    workload.blocks[2].parameters = workload.blocks[2].padded_parameters = ElementCount{};
    workload.blocks[2].frozen_bytes = Bytes{1000};
    workload.blocks[3].frozen_bytes = Bytes{77};
    for (const StepPlan& plan :
         {build_training_step(workload, placement), build_external_backward(workload, placement),
          build_external_norms(workload, placement), build_flush(workload, placement)}) {
      EXPECT_EQ(find_race(plan), "") << to_text(plan);
      EXPECT_EQ(find_wrong_content(plan), "") << to_text(plan);
    }
    for (const StepPlan& pass :
         {build_training_step(workload, placement), build_external_backward(workload, placement)}) {
      EXPECT_EQ(bytes_moved(pass, kUploadFrozen), Bytes{1077});
      for (const Op& op : pass.ops) {
        const bool computes = op.lane == Lane::external || op.lane == Lane::h2d;
        EXPECT_TRUE(op.block != 2 || computes) << name_of(op);
      }
    }
    // A slot each of the largest; 1, 2, 4 and 5 leaves are trained.
    std::map<std::string, std::uint64_t> bytes;
    for (const MemoryItem& item : memory_items(workload, placement)) {
      bytes[std::string(name_of(item.tier)) + " " + item.what] = item.bytes.value();
    }
    EXPECT_EQ(bytes["device slots of frozen parameters"], 1000 * slots);
    EXPECT_EQ(bytes["device frozen parameters"], 500U);
    EXPECT_EQ(bytes["host frozen parameters"], 1077U);
    EXPECT_EQ(bytes["host parameters"], 12 * kLeafParameters * 2);
    EXPECT_EQ(bytes["host waiting gradients"], 12 * kLeafParameters * 2);
  }
}

TEST(ExternalStep, WhatIsFrozenOnDiskPassesThroughStagingInEveryPass) {
  for (const std::uint32_t slots : {1U, 3U}) {
    auto [workload, placement] = external(6, Tier::host);
    workload.streams_external = true;
    placement.parameter_slots = slots;
    placement.blocks[0].parameters = Tier::device;
    placement.frozen_staging = 2;
    for (std::uint32_t block = 1; block < 5; ++block) {  // of the last block nothing is frozen
      workload.blocks[block].frozen_bytes = Bytes{5000 * block};
      placement.blocks[block].parameters = Tier::nvme;
    }
    // Of 5,000, 10,000, 15,000 and 20,000 bytes: 2, 3, 4 and 5 pages.
    for (const StepPlan& pass :
         {build_training_step(workload, placement), build_external_backward(workload, placement)}) {
      EXPECT_EQ(find_race(pass), "") << to_text(pass);
      EXPECT_EQ(find_wrong_content(pass), "") << to_text(pass);
      EXPECT_EQ(bytes_moved(pass, kReadFrozen), Bytes{14 * 4096});
      EXPECT_EQ(bytes_moved(pass, kUploadFrozen), Bytes{50'000});
    }
    // A read waits for the upload that leaves its buffer, and for no pass.
    const StepPlan forward = build_training_step(workload, placement);
    const OpIndex third = find(forward, OpKind::copy, Lane::nvme_read, 3);
    const auto dependencies = forward.dependencies_of(forward.ops[third]);
    ASSERT_EQ(dependencies.size(), 1U);
    const Op& upload = forward.ops[dependencies.front()];
    EXPECT_TRUE(is_copy(upload, kUploadFrozen) && upload.block == 1);
    std::map<std::string, std::uint64_t> bytes;
    for (const MemoryItem& item : memory_items(workload, placement)) {
      bytes[std::string(name_of(item.tier)) + " " + item.what] = item.bytes.value();
    }
    EXPECT_EQ(bytes.count("host frozen parameters"), 0U);
    EXPECT_EQ(bytes["host staging of frozen parameters"], 2U * 5 * 4096);
    EXPECT_EQ(bytes["nvme frozen parameters"], 14U * 4096);
    EXPECT_EQ(bytes["device slots of frozen parameters"], 20'000 * slots);
  }
}

TEST(ExternalStep, APassWaitsForTheUpdateOfItsOwnBlockAlone) {
  const auto [workload, placement] = external(5, Tier::host);
  const StepPlan plan = build_training_step(workload, placement);
  for (std::uint32_t block = 0; block < 5; ++block) {
    for (const OpKind kind : {OpKind::forward, OpKind::backward}) {
      const Op& pass = plan.ops[find(plan, kind, Lane::external, block)];
      const auto dependencies = plan.dependencies_of(pass);
      ASSERT_FALSE(dependencies.empty());
      for (const OpIndex on : dependencies) {
        EXPECT_EQ(plan.ops[on].kind, OpKind::update);
        EXPECT_EQ(plan.ops[on].block, block);
      }
    }
  }
}

TEST(ExternalStep, ANormWaitsForItsBlocksGradientAlone) {
  const auto [workload, placement] = external(5, Tier::nvme);
  const StepPlan plan = build_training_step(workload, placement);
  for (std::uint32_t block = 0; block < 5; ++block) {
    const Op& norm = plan.ops[find(plan, OpKind::grad_norm, Lane::cpu, block)];
    ASSERT_EQ(norm.dependency_count, 1U);
    EXPECT_EQ(plan.dependencies_of(norm).front(),
              find(plan, OpKind::backward, Lane::external, block));
  }
}

TEST(ExternalStep, HoldsParametersGradientsAndStateOnTheHostAndNothingElse) {
  const auto [workload, placement] = external(2, Tier::host);
  // 12,288 parameters: 2 B each of parameter and gradient, 10 B of state, three leaves of 8 B, and
  // a staging buffer of a tile's slot, 12 B a parameter and pages between its arrays.
  std::uint64_t host = 0;
  for (const MemoryItem& item : memory_items(workload, placement)) {
    EXPECT_NE(item.tier, Tier::device) << item.what;
    if (item.tier == Tier::host && item.what != "state staging" && item.what != "optimizer state") {
      host += item.bytes.value();
    }
  }
  EXPECT_EQ(host, 12'288 * 4 + 3 * 8);
}

TEST(ExternalStep, GradientsOfSeveralPassesWaitInFp32) {
  const auto [workload, placement] = external(2, Tier::host, 2);
  const auto items = memory_items(workload, placement);
  const auto gradients = std::ranges::find_if(items, [](const MemoryItem& item) {
    return item.tier == Tier::host && item.what == "waiting gradients";
  });
  ASSERT_NE(gradients, items.end());
  EXPECT_EQ(gradients->bytes, Bytes{12'288 * 4});
}

}  // namespace
}  // namespace spillway::plan::external_step_test
