// What a run may fill: never more than there is, and shared by need where device and host are one
// memory.
#include "runtime/engine/prepare/budgets.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/plan/search/choose.hpp"

namespace spillway::engine::budgets_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

MemoryBudget memory_of(Bytes available) {
  return {.physical = 64_GiB,
          .physical_available = available,
          .tightest_cgroup = std::nullopt,
          .scarcest_cgroup = std::nullopt,
          .lockable = std::nullopt};
}

/// Four blocks of 4 Mi parameters each.
plan::Workload workload() {
  plan::Workload workload;
  const ElementCount parameters{4U << 20};
  for (const char* name : {"embedding", "layer 0", "layer 1", "head"}) {
    workload.blocks.push_back({.name = name,
                               .parameters = parameters,
                               .padded_parameters = parameters,
                               .forward_flops = 1e6,
                               .backward_flops = 2e6,
                               .saved_bytes = 1_MiB});
  }
  workload.boundary_bytes = workload.workspace_bytes = 1_MiB;
  workload.tokens = 16;
  return workload;
}

config::TrainOptions options() {
  config::TrainOptions options;
  options.device = config::DeviceKind::host;
  return options;
}

TEST(Budgets, SizesThatAreAskedForAreBoundedByWhatThereIsLessTheProgram) {
  MemoryBudget memory = memory_of(8_GiB);
  memory.scarcest_cgroup = {.limit = 400_MiB, .available = 390_MiB, .file = "memory.max"};
  config::TrainOptions asked = options();
  asked.device_memory = 249_MiB;
  asked.host_memory = 258_MiB;
  const plan::Budgets budgets = share_memory(asked, workload(), memory, std::nullopt);
  EXPECT_LE(budgets.device, 249_MiB);
  EXPECT_LE(budgets.host, 258_MiB);
  EXPECT_LE(budgets.device + budgets.host, 390_MiB - kProcessOverhead);
}

TEST(Budgets, SizesThatFitAreTakenAsTheyAre) {
  config::TrainOptions asked = options();
  asked.device_memory = 249_MiB;
  asked.host_memory = 258_MiB;
  const plan::Budgets budgets = share_memory(asked, workload(), memory_of(1_GiB), std::nullopt);
  EXPECT_EQ(budgets.device, 249_MiB);
  EXPECT_EQ(budgets.host, 258_MiB);
}

TEST(Budgets, ADeviceOfItsOwnIsBoundedByItsFreeMemory) {
  config::TrainOptions asked = options();
  asked.device = config::DeviceKind::cuda;
  asked.device_memory = 80_GiB;
  const plan::Budgets budgets = share_memory(asked, workload(), memory_of(1_GiB), 24_GiB);
  EXPECT_EQ(budgets.device, 24_GiB);
  EXPECT_LE(budgets.host, 1_GiB - kProcessOverhead);
}

TEST(Budgets, HostMemoryBesideADeviceOfItsOwnIsTakenAtTheWordOfWhoNamesIt) {
  config::TrainOptions asked = options();
  asked.device = config::DeviceKind::cuda;
  asked.host_memory = 110_GiB;  // of a machine whose memory grows as it is touched
  MemoryBudget memory = memory_of(1_GiB);
  EXPECT_EQ(memory_limits(asked, memory, 24_GiB).host, 110_GiB);
  memory.tightest_cgroup =
      memory.scarcest_cgroup = {.limit = 100_GiB, .available = 2_GiB, .file = "memory.max"};
  EXPECT_EQ(memory_limits(asked, memory, 24_GiB).host, 100_GiB - kProcessOverhead);
  asked.device = config::DeviceKind::host;
  EXPECT_EQ(memory_limits(asked, memory, std::nullopt).host, 1_GiB - kProcessOverhead);
}

TEST(Budgets, WhatTheProcessHasAlreadyIsNoRoomInACgroup) {
  config::TrainOptions asked = options();
  asked.device = config::DeviceKind::cuda;
  asked.host_memory = 8_GiB;
  MemoryBudget memory = memory_of(1_GiB);
  memory.tightest_cgroup = {.limit = 4_GiB, .available = 3_GiB, .file = "memory.max"};
  memory.own = 900_MiB;  // of CUDA
  EXPECT_EQ(memory_limits(asked, memory, 24_GiB).host, 4_GiB - 900_MiB - kProcessOverhead);
  memory.own = 5_GiB;
  EXPECT_EQ(memory_limits(asked, memory, 24_GiB).host, Bytes{});
}

TEST(Budgets, OneMemoryIsSharedByNeed) {
  for (const config::StateHome home : {config::StateHome::host, config::StateHome::device}) {
    config::TrainOptions asked = options();
    asked.state_home = home;
    // State in 400 MiB, of which a half has no room for 16 Mi parameters at 16 bytes each.
    const MemoryBudget memory = memory_of(550_MiB);
    plan::Budgets budgets = share_memory(asked, workload(), memory, std::nullopt);
    EXPECT_LE(budgets.device + budgets.host, room_in(memory));
    budgets.nvme = 1_GiB * 64U;
    const auto choice = plan::choose_placement(workload(), budgets, placement_request(asked));
    const auto* placement = std::get_if<plan::Placement>(&choice);
    ASSERT_NE(placement, nullptr) << static_cast<int>(home);
    EXPECT_FALSE(placement->any_state(plan::Tier::nvme));
  }
}

TEST(Budgets, OneMemoryIsSharedWithTheDiskOnlyWhereItIsTooSmallWithoutIt) {
  // Kept activations leave no room for the state beside them: it is on the host, or on the disk.
  plan::Workload large = workload();
  for (plan::BlockShape& block : large.blocks) block.saved_bytes = 80_MiB;
  for (const auto& [available, on_disk] : {std::pair(700_MiB, false), {450_MiB, true}}) {
    plan::Budgets budgets = share_memory(options(), large, memory_of(available), std::nullopt);
    budgets.nvme = 64_GiB;
    const auto choice = plan::choose_placement(large, budgets, placement_request(options()));
    const auto* placement = std::get_if<plan::Placement>(&choice);
    ASSERT_NE(placement, nullptr) << format_bytes(available);
    EXPECT_EQ(placement->any_state(plan::Tier::nvme), on_disk) << format_bytes(available);
  }
}

TEST(Budgets, LessThanTheProgramTakesIsNothing) {
  const plan::Budgets budgets =
      share_memory(options(), workload(), memory_of(16_MiB), std::nullopt);
  EXPECT_EQ(budgets.device + budgets.host, Bytes{});
}

/// What check_fits says; empty where it fits.
std::string refusal_of(const FixedNeeds& needs, const config::TrainOptions& options,
                       const MemoryBudget& memory,
                       std::optional<Bytes> free_device = std::nullopt) {
  try {
    check_fits(needs, options, memory, free_device, "fewer tokens");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::does_not_fit);
    return error.what();
  }
  return {};
}

TEST(FixedNeeds, AreRefusedBeyondASizeThatWasAskedFor) {
  config::TrainOptions asked = options();
  asked.device_memory = 100_MiB;
  EXPECT_EQ(refusal_of({100_MiB, 10_MiB}, asked, memory_of(1_GiB)), "");
  EXPECT_THAT(
      refusal_of({101_MiB, 10_MiB}, asked, memory_of(1_GiB)),
      AllOf(HasSubstr("device memory needs 101 MiB and the budget is 100 MiB (--device-memory)"),
            HasSubstr("--device-memory of at least 101 MiB"), HasSubstr("fewer tokens")));
  asked.host_memory = 9_MiB;
  EXPECT_THAT(
      refusal_of({100_MiB, 10_MiB}, asked, memory_of(1_GiB)),
      AllOf(HasSubstr("host memory needs 10.0 MiB and the budget is 9.00 MiB (--host-memory)"),
            HasSubstr("--host-memory of at least 10.0 MiB")));
}

TEST(FixedNeeds, AreRefusedBeyondWhatThereIsWhateverWasAskedFor) {
  config::TrainOptions asked = options();
  asked.device_memory = asked.host_memory = 8_GiB;
  MemoryBudget memory = memory_of(8_GiB);
  memory.tightest_cgroup =
      memory.scarcest_cgroup = {.limit = 400_MiB, .available = 364_MiB, .file = "memory.max"};
  EXPECT_EQ(refusal_of({200_MiB, 100_MiB}, asked, memory), "");
  EXPECT_THAT(refusal_of({200_MiB, 101_MiB}, asked, memory),
              AllOf(HasSubstr("one here and need 301 MiB and the budget is 300 MiB"),
                    HasSubstr("memory.max"), HasSubstr("free memory of at least 301 MiB")));
}

TEST(FixedNeeds, OfADeviceOfItsOwnAreComparedWithItsFreeMemory) {
  config::TrainOptions asked = options();
  asked.device = config::DeviceKind::cuda;
  EXPECT_EQ(refusal_of({24_GiB, 1_MiB}, asked, memory_of(1_GiB), 24_GiB), "");
  EXPECT_THAT(refusal_of({25_GiB, 1_MiB}, asked, memory_of(1_GiB), 24_GiB),
              AllOf(HasSubstr("24.0 GiB of device memory are free"),
                    HasSubstr("fit: free memory of at least 25.0 GiB")));
  EXPECT_THAT(refusal_of({1_MiB, 1_GiB}, asked, memory_of(1_GiB), 24_GiB),
              HasSubstr("host memory needs 1.00 GiB"));
  asked.device_memory = 2_GiB;
  EXPECT_THAT(refusal_of({3_GiB, 1_MiB}, asked, memory_of(1_GiB), 24_GiB),
              HasSubstr("fit: --device-memory of at least 3.00 GiB"))
      << "which the device has free, and the host has not";
}

TEST(Budgets, RanksOfAMachineHaveAPartOfItsMemoryEach) {
  MemoryBudget memory = memory_of(16_GiB);
  config::TrainOptions asked = options();
  asked.host_memory = 10_GiB;
  EXPECT_EQ(memory_limits(asked, per_rank(memory, 1), std::nullopt).host, 10_GiB);
  EXPECT_EQ(memory_limits(asked, per_rank(memory, 4), std::nullopt).host, 4_GiB - kProcessOverhead);
  // With GPUs a size is taken at its word, within the cgroup, which the ranks share.
  asked.host_memory = 100_GiB;
  memory.tightest_cgroup = {.limit = 64_GiB, .available = 60_GiB, .file = "memory.max"};
  EXPECT_EQ(memory_limits(asked, per_rank(memory, 4), 24_GiB).host, 16_GiB - kProcessOverhead);
  memory.scarcest_cgroup = {.limit = 16_GiB, .available = 8_GiB, .file = "memory.max"};
  EXPECT_EQ(per_rank(memory, 4).available(), 2_GiB);
}

TEST(Budgets, RanksOfADiskHaveAPartOfItsRateEach) {
  const plan::MachineProfile alone{
      .update = 9, .nvme_read = 8, .nvme_write = 4, .nvme_combined = 12};
  const plan::MachineProfile part = per_rank(alone, 4);
  EXPECT_EQ(part.nvme_read, 2);
  EXPECT_EQ(part.nvme_write, 1);
  EXPECT_EQ(part.nvme_combined, 3);
  EXPECT_EQ(part.update, 9);
}

}  // namespace
}  // namespace spillway::engine::budgets_test
