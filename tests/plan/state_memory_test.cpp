// What a parameter costs on host and disk, by format: the planner's table of a Llama-3-8B against
// the published bytes, the waiting gradient's 2 or, where rounds are summed, 4.
#include <gtest/gtest.h>

#include "runtime/plan/search/choose.hpp"
#include "runtime/plan/step/op_traffic.hpp"
#include "tests/plan/plan_helpers.hpp"

namespace spillway::plan::state_memory_test {
namespace {

constexpr Bytes kPlenty{std::uint64_t{1} << 50};

/// 8,030,261,248 parameters: 32 layers of width 4096, 1024 of keys and values, MLP of 14336;
/// embedding and head of 128,256 rows.
Workload llama_8b(std::uint32_t rounds) {
  const std::uint64_t table = std::uint64_t{128256} * 4096;
  const std::uint64_t layer = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336) + 2 * 4096;
  Workload workload;
  const auto add = [&](const char* name, std::uint64_t parameters) {
    workload.blocks.push_back(
        {.name = name,
         .parameters = ElementCount{parameters},
         .padded_parameters = ElementCount{round_up(parameters, kLeafParameters)},
         .saved_bytes = Bytes{0}});
  };
  add("embedding", table);
  for (int i = 0; i < 32; ++i) add("layer", layer);
  add("head", table + 4096);
  workload.compute = DType::bf16;
  workload.boundary_bytes = Bytes{8192 * 4096 * 2};
  workload.token_bytes = Bytes{2 * 8192 * 4};
  workload.tokens = 8192;
  workload.rounds = rounds;
  workload.micro_batches = 68 / rounds;
  return workload;
}

double host_and_disk_bytes_per_parameter(const Workload& workload,
                                         const PlacementRequest& request) {
  const Budgets budgets{.device = kPlenty, .host = kPlenty, .nvme = kPlenty};
  const auto choice = choose_placement(workload, budgets, request);
  const std::vector<MemoryItem> items = memory_items(workload, std::get<Placement>(choice));
  double parameters = 0;
  for (const BlockShape& block : workload.blocks) {
    parameters += static_cast<double>(block.parameters.value());
  }
  EXPECT_EQ(parameters, 8'030'261'248.0);
  const Bytes bytes = total(items, Tier::host) + total(items, Tier::nvme);
  return static_cast<double>(bytes.value()) / parameters;
}

constexpr StateFormat kFormats[] = {StateFormat::fp32, StateFormat::split, StateFormat::bf16,
                                    StateFormat::int8};

/// A value of golden/state_formats.json.
double published(StateFormat format, const char* what) {
  return golden_json("state_formats.json").at(std::string(name_of(format))).at(what);
}

TEST(StateMemory, InDramAParameterCostsTheTableAndItsWaitingGradient) {
  for (const StateFormat format : kFormats) {
    const PlacementRequest request{
        .state = Tier::host, .resident = false, .format = format, .commits = false};
    const double table = published(format, "all");
    const double once = host_and_disk_bytes_per_parameter(llama_8b(1), request);
    EXPECT_NEAR(once / (table + 2), 1, 0.05) << name_of(format);
    // Where rounds are summed the sum itself waits, in fp32.
    const double summed = host_and_disk_bytes_per_parameter(llama_8b(17), request);
    EXPECT_NEAR(summed / (table + 4), 1, 0.05) << name_of(format);
  }
}

TEST(StateMemory, CommitsCostTwoSlotsOnDiskAndNothingInDram) {
  for (const StateFormat format : kFormats) {
    PlacementRequest request{.state = Tier::host, .resident = false, .format = format};
    const double committed = host_and_disk_bytes_per_parameter(llama_8b(1), request);
    request.commits = false;
    const double uncommitted = host_and_disk_bytes_per_parameter(llama_8b(1), request);
    // int8's scales are in a slot and not in the table of traffic, and neither are the 16 KiB
    // before each array of a tile of 2 Mi parameters but the first.
    const double scales = format == StateFormat::int8 ? 1.0 / 32 : 0;
    const double gaps = (format == StateFormat::int8 ? 3 : 2) * 16384.0 / (2 << 20);
    const double slots = 2 * (published(format, "slot_written") + scales + gaps);
    EXPECT_NEAR((committed - uncommitted) / slots, 1, 0.001) << name_of(format);
  }
}

TEST(StateMemory, OnDiskAParameterKeepsItsNarrowCopyAndItsGradientInDram) {
  for (const StateFormat format : kFormats) {
    const PlacementRequest request{
        .state = Tier::nvme, .resident = false, .format = format, .commits = false};
    const double expected = 2 + 2 + 2 * published(format, "slot_written");
    const double measured = host_and_disk_bytes_per_parameter(llama_8b(1), request);
    EXPECT_NEAR(measured / expected, 1, 0.05) << name_of(format);
  }
}

TEST(StateMemory, CountsScalesOfPartialGroups) {
  EXPECT_EQ(moment_bytes(StateFormat::fp32, ElementCount{4096}).value(), 16384U);
  EXPECT_EQ(moment_bytes(StateFormat::bf16, ElementCount{4096}).value(), 8192U);
  EXPECT_EQ(moment_bytes(StateFormat::int8, ElementCount{4096}).value(), 4096U + 16 * 4);
  EXPECT_EQ(moment_bytes(StateFormat::int8, ElementCount{257}).value(), 257U + 2 * 4);
  EXPECT_EQ(moment_bytes(StateFormat::int8, ElementCount{0}).value(), 0U);
}

TEST(StateMemory, AnUpdateMovesTheBytesOfTheTable) {
  for (const StateFormat format : kFormats) {
    EXPECT_NEAR(update_traffic_per_parameter(format, DType::bf16), published(format, "update"),
                format == StateFormat::int8 ? 0.1 : 0);
  }
  // fp32 compute: gradient read and parameter written at 4 bytes each.
  EXPECT_DOUBLE_EQ(update_traffic_per_parameter(StateFormat::fp32, DType::fp32), 32);
}

}  // namespace
}  // namespace spillway::plan::state_memory_test
