// Where bytes live: the memory table by hand, and tiles.
#include "runtime/plan/placement/placement.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "runtime/plan/placement/pools.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan::placement_test {
namespace {

constexpr std::uint64_t kLeaf = kLeafParameters;

using Table = std::map<std::string, std::uint64_t>;

Table table(const Workload& workload, const Placement& placement, Tier tier) {
  Table lines;
  for (const MemoryItem& item : memory_items(workload, placement)) {
    if (item.tier == tier) lines[item.what] = item.bytes.value();
  }
  return lines;
}

TEST(MemoryItems, OfStreamedFp32StateOnHost) {
  // Blocks of 3, 2, 2, 1 leaves; 2 parameter slots of 3 leaves; accumulators of 3 and 2.
  const Workload workload = small_workload();
  const Placement placement = uniform_placement(workload, {});
  const Table device{{"parameter slots", 2 * 3 * kLeaf * 4},
                     {"gradient accumulators", (3 + 2) * kLeaf * 4},
                     {"boundary activations", 256 * 3},
                     {"boundary gradients", 256},
                     {"recomputation scratch", 1000},
                     {"operator workspace", 512},
                     {"token ids", 64},
                     {"loss sums", 8}};
  const Table host{{"parameters", 8 * kLeaf * 4},
                   {"waiting gradients", 8 * kLeaf * 4},
                   {"optimizer state", 8 * kLeaf * 12},
                   {"state staging", 2 * 2 * kLeaf * 12},
                   {"token ids", 64},
                   {"norm leaves and loss sums", 8 * 8 + 8}};
  EXPECT_EQ(table(workload, placement, Tier::device), device);
  EXPECT_EQ(table(workload, placement, Tier::host), host);
  EXPECT_EQ(table(workload, placement, Tier::nvme), (Table{{"state, two slots", 96 * kLeaf * 2}}));
}

Table lines_of(const Pools& pools, Tier tier) {
  Table lines;
  for (const MemoryItem& item : memory_items(pools)) {
    if (item.tier == tier) lines[item.what] = item.bytes.value();
  }
  return lines;
}

TEST(UsedPools, OfForwardPassesAreTheModelAndTwoActivations) {
  Workload workload = small_workload();
  workload.compute = DType::bf16;
  workload.constant_bytes = Bytes{128};
  const Placement placement = lean_placement(workload);
  const auto used = [&] {
    return used_by(build_evaluation(workload, placement), make_pools(workload, placement));
  };
  Table device{{"resident parameters", 8 * kLeaf * 2},
               {"boundary slots", 2 * 256},
               {"operator workspace", 512},
               {"rotary tables", 128},
               {"token ids", 64},
               {"loss sums", 8}};
  const Table host{{"token ids", 64}, {"norm leaves and loss sums", 8}};
  EXPECT_EQ(lines_of(used(), Tier::device), device);
  EXPECT_EQ(lines_of(used(), Tier::host), host);
  EXPECT_EQ(lines_of(used(), Tier::nvme), Table{});
  workload.logits_bytes = Bytes{4000};
  device.erase("loss sums");
  device["logits"] = 4000;
  EXPECT_EQ(lines_of(used(), Tier::device), device);
}

TEST(UsedPools, OfOneLayerAreThoseOfOneLayer) {
  const Workload workload = small_workload();
  const Placement placement = lean_placement(workload, Tier::device);
  const StepPlan layer = only(build_training_step(workload, placement),
                              [](const Op& op) { return is_model_op(op) && op.block == 2; });
  EXPECT_EQ(to_text(layer).find("load"), std::string::npos);
  ASSERT_EQ(layer.ops.size(), 2U);
  EXPECT_EQ(layer.dependencies_of(layer.ops[1]).size(), 0U);  // the lane's order says it
  const Table device{{"resident parameters", 2 * kLeaf * 4},
                     {"gradient accumulators", 3 * kLeaf * 4},
                     {"boundary slots", 2 * 256},
                     {"saved activations", 1000},
                     {"operator workspace", 512}};
  EXPECT_EQ(lines_of(used_by(layer, make_pools(workload, placement)), Tier::device), device);
}

TEST(MemoryItems, OfTiedBf16InTwoRoundsPartlyResidentStateOnNvme) {
  Workload workload = small_workload();
  tie(workload);
  workload.compute = DType::bf16;
  workload.rounds = 2;
  workload.micro_batches = 3;
  Placement placement = uniform_placement(workload, {.state = Tier::nvme});
  placement.blocks[0].parameters = Tier::device;
  placement.blocks[2].saved = Tier::device;
  const Table device{{"resident parameters", 3 * kLeaf * 2},
                     {"parameter slots", 2 * 2 * kLeaf * 2},
                     {"gradient accumulators", (3 + 2) * kLeaf * 4},
                     {"rounded gradients", (3 + 2) * kLeaf * 2},
                     {"tied accumulator", (3 * kLeaf - 1) * 4},
                     {"boundary activations", 256 * 3 * 3},
                     {"boundary gradients", 256 * 3},
                     {"saved activations", 1000 * 3},
                     {"recomputation scratch", 1000},
                     {"operator workspace", 512},
                     {"token ids", 64 * 3},
                     {"loss sums", 8 * 3 * 2}};
  const Table host{{"parameters", 8 * kLeaf * 2},
                   {"waiting gradients", 8 * kLeaf * 4},
                   {"landing gradients", (3 + 2) * kLeaf * 2},
                   {"state staging", 2 * 2 * kLeaf * 12},
                   {"token ids", 64 * 3 * 2},
                   {"norm leaves and loss sums", 8 * 8 + 8 * 3 * 2}};
  EXPECT_EQ(table(workload, placement, Tier::device), device);
  EXPECT_EQ(table(workload, placement, Tier::host), host);
  EXPECT_EQ(table(workload, placement, Tier::nvme), (Table{{"state, two slots", 96 * kLeaf * 2}}));
}

TEST(MemoryItems, OfRoundsSummedOnTheDevice) {
  Workload workload = small_workload();
  workload.compute = DType::bf16;
  workload.rounds = 2;
  Placement placement = uniform_placement(workload, {});
  const Table host_only = table(workload, placement, Tier::host);
  EXPECT_EQ(host_only.at("landing gradients"), (3 + 2) * kLeaf * 2);
  placement.blocks[1].gradients = Tier::device;
  Table device = table(workload, placement, Tier::device);
  EXPECT_EQ(device.at("sums of rounds"), 2 * kLeaf * 4);
  EXPECT_EQ(table(workload, placement, Tier::host), host_only);
  for (BlockCut& block : placement.blocks) block.gradients = Tier::device;
  EXPECT_EQ(table(workload, placement, Tier::device).at("sums of rounds"), 8 * kLeaf * 4);
  EXPECT_EQ(table(workload, placement, Tier::host).count("landing gradients"), 0U);
  workload.rounds = 1;
  EXPECT_EQ(table(workload, placement, Tier::device).count("sums of rounds"), 0U);
}

TEST(MemoryItems, OfDeviceOnlyFp16) {
  Workload workload = small_workload();
  workload.compute = DType::fp16;
  Placement placement = uniform_placement(workload, kAllOnDevice);
  placement.gradient_slots = 1;
  const Table device{{"resident parameters", 8 * kLeaf * 2},
                     {"optimizer state", 8 * kLeaf * 12},
                     {"gradient accumulators", 3 * kLeaf * 4},
                     {"rounded gradients", 3 * kLeaf * 2},
                     {"waiting gradients", 8 * kLeaf * 2},
                     {"gradient norm leaves", 8 * 8},
                     {"boundary activations", 256 * 3},
                     {"boundary gradients", 256},
                     {"saved activations", 2 * 1000},
                     {"operator workspace", 512},
                     {"token ids", 64},
                     {"loss sums", 8}};
  EXPECT_EQ(table(workload, placement, Tier::device), device);
  std::uint64_t sum = 0;
  for (const auto& [what, bytes] : device) sum += bytes;
  EXPECT_EQ(total(memory_items(workload, placement), Tier::device).value(), sum);
}

TEST(MemoryItems, OfKeptActivationsOnTheHost) {
  Workload workload = small_workload();
  workload.micro_batches = 3;
  workload.blocks[1].saved_bytes = Bytes{700};
  const auto lines = [&](const Placement& placement, Tier tier) {
    Table found;
    for (const char* what :
         {"saved activations", "saved activation slots", "recomputation scratch"}) {
      const Table all = table(workload, placement, tier);
      if (all.count(what) > 0) found[what] = all.at(what);
    }
    return found;
  };
  Placement placement = uniform_placement(workload, {.saved = Tier::host});
  placement.saved_slots = 4;
  EXPECT_EQ(lines(placement, Tier::device), (Table{{"saved activation slots", 4 * 1000}}));
  EXPECT_EQ(lines(placement, Tier::host), (Table{{"saved activations", 1700 * 3}}));
  placement.blocks[2].saved = Tier::device;
  EXPECT_EQ(lines(placement, Tier::device),
            (Table{{"saved activation slots", 4 * 700}, {"saved activations", 1000 * 3}}));
  EXPECT_EQ(lines(placement, Tier::host), (Table{{"saved activations", 700 * 3}}));
  placement.blocks[2].saved.reset();
  EXPECT_EQ(lines(placement, Tier::device),
            (Table{{"saved activation slots", 4 * 700}, {"recomputation scratch", 1000}}));
  EXPECT_EQ(lines(placement, Tier::nvme), Table{});
}

TEST(StateBytes, AgreeWithTheTableOfBytesPerParameter) {
  const ElementCount leaf{kLeaf};
  const auto per_parameter = [&](StateFormat format) {
    return static_cast<double>(slot_bytes(format, leaf * 32U).value()) / (32.0 * kLeaf);
  };
  for (const StateFormat format :
       {StateFormat::fp32, StateFormat::split, StateFormat::bf16, StateFormat::int8}) {
    const nlohmann::json golden =
        golden_json("state_formats.json").at(std::string(name_of(format)));
    // A slot holds the parameters too, but for fp32, whose master determines them.
    const double apart = format == StateFormat::fp32 ? 2 : 0;
    EXPECT_DOUBLE_EQ(per_parameter(format), golden.at("all").get<double>() - apart);
    EXPECT_NEAR(per_parameter(format), golden.at("slot_written"), 0.04);
    EXPECT_NEAR(static_cast<double>(state_bytes(format, leaf * 32U).value()) / (32.0 * kLeaf),
                golden.at("slot_read"), 0.04);
    EXPECT_EQ(slot_bytes(format, leaf).value() % kPageBytes, 0U);
  }
}

TEST(Tiles, CoverEveryBlockExactlyAndStartOnLeaves) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 200; ++i) {
    const Workload workload = cases.workload();
    const ElementCount size{cases.between(1, 6) * kLeaf};
    std::vector<ElementCount> covered(workload.blocks.size());
    std::uint32_t block = 0;
    for (const Tile& tile : make_tiles(workload, size, /*replica=*/0)) {
      EXPECT_GE(tile.block, block);
      block = tile.block;
      EXPECT_EQ(tile.first, covered.at(block));
      EXPECT_EQ(tile.first.value() % kLeaf, 0U);
      EXPECT_EQ(tile.count.value() % kLeaf, 0U);
      EXPECT_GT(tile.count, ElementCount{});
      EXPECT_LE(tile.count, size);
      covered[block] += tile.count;
    }
    for (std::size_t b = 0; b < covered.size(); ++b) {
      EXPECT_EQ(covered[b], workload.blocks[b].padded_parameters);
    }
  }
}

}  // namespace
}  // namespace spillway::plan::placement_test
