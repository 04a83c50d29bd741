#include "runtime/plan/placement/block_cut.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "runtime/plan/placement/dataflow_graph.hpp"
#include "runtime/plan/placement/partition.hpp"
#include "runtime/plan/predict/price.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/plan_helpers.hpp"
#include "tests/plan/standard_graph.hpp"
#include "tests/plan/step_workloads.hpp"

namespace spillway::plan::block_cut_test {
namespace {

std::set<std::string> off_device(const DataflowGraph& graph, const BlockCut& cut) {
  const Cut sides = evaluate_cut(graph, cut);
  std::set<std::string> found;
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i) {
    if (sides.on_cpu(i)) found.insert(graph.nodes[i].name);
  }
  return found;
}

TEST(BlockCut, OfTheStandardGraphThatMovesLeastIsZeroOffloads) {
  const nlohmann::json golden = golden_json("zero_offload_partition.json");
  std::set<std::string> most;  // of the three cheapest cuts the one that saves the most
  std::uint64_t saved = 0;
  for (const auto& cut : golden.at("minimum_cuts_cpu_side")) {
    if (cut.at("gpu_bytes_saved") <= saved) continue;
    saved = cut.at("gpu_bytes_saved");
    most = cut.at("cpu").get<std::set<std::string>>();
  }
  const DataflowGraph graph = standard_graph();
  std::vector<BlockCut> cuts = admissible_cuts(Workload{}, graph);
  std::erase_if(cuts, [&](const BlockCut& cut) { return off_device(graph, cut).empty(); });
  const Cut best = evaluate_cut(graph, cuts.front());
  EXPECT_EQ(off_device(graph, cuts.front()), most);
  EXPECT_EQ(best.traffic().value(), golden.at("minimum_cut_bytes_per_parameter"));
  EXPECT_EQ(best.gpu_bytes.value(), golden.at("gpu_bytes_per_parameter_left"));
  EXPECT_EQ(cuts.front(), (BlockCut{.parameters = Tier::device, .saved = Tier::device}));
  EXPECT_EQ(cuts.front().updated_by(), Lane::cpu);
  // Whatever else leaves the device, the parameters leave it too.
  for (const BlockCut& cut : cuts) {
    EXPECT_TRUE(off_device(graph, cut) == most || !cut.resident()) << to_text(graph, cut);
  }
}

TEST(BlockCut, OfAnyBlockIsFoundIfAStepCanRunIt) {
  Workload workload = small_workload();
  for (const std::uint32_t rounds : {1U, 3U}) {
    for (const bool tiled : {false, true}) {
      workload.rounds = rounds;
      workload.operator_tiles = tiled;
      for (std::uint32_t b = 0; b < 4; ++b) workload.blocks[b].layer = b;
      std::vector<BlockCut> plain;
      for (const Tier parameters : kTiers) {
        for (const Tier gradients : kTiers) {
          for (const Tier state : kTiers) {
            for (const std::optional<Tier> saved :
                 {std::optional<Tier>(), {Tier::device}, {Tier::host}, {Tier::nvme}}) {
              for (const Tier output : kTiers) {
                plain.push_back({parameters, gradients, state, saved, output});
                if (!is_admissible(workload, plain.back())) plain.pop_back();
              }
            }
          }
        }
      }
      const auto cuts =
          admissible_cuts(workload, block_graph(workload, uniform_placement(workload, {}), 1));
      EXPECT_THAT(cuts, testing::UnorderedElementsAreArray(plain));
    }
  }
}

TEST(BlockCut, IsOfTheTwoSuperNodesAndTheirData) {
  const Workload workload = small_workload();
  const DataflowGraph graph = block_graph(workload, uniform_placement(workload, {}), 1);
  std::vector<std::string> names;
  for (const DataflowNode& node : graph.nodes) names.push_back(node.name);
  EXPECT_THAT(names, testing::UnorderedElementsAre("fwd_bwd", "p16", "activations", "g16",
                                                   "update_float2half", "output"));
  EXPECT_THAT(graph.nodes[graph.find("fwd_bwd").value()].members,
              testing::UnorderedElementsAre("fwd", "bwd"));
  EXPECT_THAT(graph.nodes[graph.find("update_float2half").value()].members,
              testing::UnorderedElementsAre("update", "momentum", "variance", "p32", "float2half"));
}

TEST(BlockCut, OfTheHeadHasNoOutputAndNoSavedActivations) {
  const Workload workload = small_workload();
  const DataflowGraph graph = block_graph(workload, uniform_placement(workload, {}), 3);
  EXPECT_EQ(graph.find("output"), std::nullopt);
  EXPECT_EQ(graph.nodes[graph.find("activations").value()].bytes, Bytes{});
}

/// What the list of ops copies over the link in one direction, by block.
std::vector<double> copied(const StepPlan& plan, std::size_t blocks, Lane lane) {
  std::vector<double> bytes(blocks);
  for (const Op& op : plan.ops) {
    if (op.lane == lane) bytes[op.block] += static_cast<double>(op.bytes.value());
  }
  return bytes;
}

TEST(BlockCutProperty, EveryEdgeThatACutSeversIsCopied) {
  RandomCases cases(property_seed());
  for (int i = 0; i < 200; ++i) {
    auto [workload, placement] = i % 3 == 0 ? cases.next_tiled() : cases.next();
    SCOPED_TRACE(i);
    for (BlockCut& cut : placement.blocks) cut.output = Tier::device;
    placement.boundary_slots = placement.boundary_staging = 0;
    const StepPlan plan = build_training_step(workload, placement);
    const auto up = copied(plan, workload.blocks.size(), Lane::h2d);
    const auto down = copied(plan, workload.blocks.size(), Lane::d2h);
    for (std::uint32_t b = 0; b < workload.blocks.size(); ++b) {
      const LaneWork work = work_of(workload, placement, b);
      EXPECT_EQ(work.up, up[b]) << "block " << b;
      EXPECT_EQ(work.down, down[b]) << "block " << b;
    }
  }
}

TEST(BlockCut, IsOneLineForPeople) {
  const Workload workload = small_workload();
  const Placement placement = uniform_placement(workload, {});
  EXPECT_EQ(to_text(block_graph(workload, placement, 1), {.state = Tier::nvme}),
            "parameters host, gradients host, state nvme, saved recomputed, output device");
  EXPECT_EQ(to_text(block_graph(workload, placement, 3), kAllOnDevice),
            "parameters device, gradients device, state device");
}

}  // namespace
}  // namespace spillway::plan::block_cut_test
