#include "runtime/plan/search/cut_report.hpp"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "runtime/plan/placement/dataflow_graph.hpp"
#include "runtime/plan/placement/memory_sums.hpp"
#include "runtime/plan/predict/price.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::plan {
namespace {

using Blocks = std::vector<std::uint32_t>;

std::string_view kind_of(const Workload& workload, std::uint32_t block) {
  const std::uint32_t layer = workload.layer_of(block);
  if (layer == 0) return "embedding";
  return layer == workload.head_layer() ? "head" : "layers";
}

Bytes link_of(const Workload& workload, const Placement& placement, const Blocks& blocks) {
  double bytes = 0;
  for (const std::uint32_t b : blocks) {
    const LaneWork work = work_of(workload, placement, b);
    bytes += work.up + work.down;
  }
  return Bytes{static_cast<std::uint64_t>(bytes)};
}

/// Gives the placement the shared buffers that its cuts need, if it has none.
void add_buffers(const Workload& workload, Placement& placement) {
  const auto at_least = [](std::uint32_t& count, std::uint32_t least) {
    count = std::max(count, least);
  };
  at_least(placement.parameter_slots, least_parameter_slots(workload, placement));
  if (placement.any_state(Tier::nvme)) at_least(placement.state_slots, Placement().state_slots);
  const bool to_disk = placement.any_saved(Tier::nvme);
  if (to_disk || placement.any_saved(Tier::host)) at_least(placement.saved_slots, 2);
  if (to_disk) at_least(placement.saved_staging, 2);
  if (!placement.any_output(Tier::host) && !placement.any_output(Tier::nvme)) return;
  if (placement.boundary_slots == 0) placement.boundary_slots = 2 * placement.parameter_slots;
  if (placement.any_output(Tier::nvme)) {
    at_least(placement.boundary_staging, placement.boundary_slots);
  }
}

class Reporter {
 public:
  Reporter(const Workload& workload, const Budgets& budgets, const PlacementRequest& request,
           const MachineProfile& profile, const PlannedStep& step)
      : workload_(workload),
        budgets_(budgets),
        profile_(profile),
        step_(step),
        sizes_(workload, step.placement.format, step.placement.tile_parameters,
               step.placement.commits),
        open_(open_cuts(workload, request, profile)) {}

  [[nodiscard]] CutReport report(const Blocks& blocks) const {
    const std::uint32_t first = blocks.front();
    const BlockCut& cut = step_.placement.blocks[first];
    return {.kind = kind_of(workload_, first),
            .blocks = static_cast<std::uint32_t>(blocks.size()),
            .cut = cut,
            .text = to_text(block_graph(workload_, step_.placement, first), cut),
            .link = link_of(workload_, step_.placement, blocks),
            .next = next_best(blocks)};
  }

 private:
  /// The chosen placement with other cuts of these blocks.
  [[nodiscard]] Placement with(const Blocks& blocks, const BlockCut& cut) const {
    Placement placement = step_.placement;
    for (const std::uint32_t b : blocks) placement.blocks[b] = cut;
    add_buffers(workload_, placement);
    return placement;
  }

  /// Cuts of which some node has data in these blocks and another tier than now.
  [[nodiscard]] std::vector<BlockCut> others(const Blocks& blocks) const {
    const std::uint32_t first = blocks.front();
    const BlockCut& now = step_.placement.blocks[first];
    const DataflowGraph graph = block_graph(workload_, step_.placement, first);
    const auto activations = graph.find(node::kActivations);
    const bool saves = graph.nodes[activations.value()].bytes > Bytes{};
    std::vector<BlockCut> list;
    for (BlockCut cut : open_) {
      if (!saves) cut.saved = now.saved;
      if (!graph.find(node::kOutput)) cut.output = now.output;
      const bool on_disk =
          cut.state == Tier::nvme || cut.output == Tier::nvme || cut.saved == Tier::nvme;
      if (on_disk && !step_.placement.uses_disk()) continue;
      if (workload_.operator_tiles && first == 0 && !cut.resident())
        continue;  // every op reads them
      if (cut != now && std::ranges::find(list, cut) == list.end()) list.push_back(cut);
    }
    return list;
  }

  [[nodiscard]] std::optional<NextBest> next_best(const Blocks& blocks) const {
    using Price = std::tuple<double, Bytes, Bytes>;
    std::optional<std::pair<Price, BlockCut>> best;
    for (const BlockCut& cut : others(blocks)) {
      const Placement placement = with(blocks, cut);
      const Price price{least_step_seconds(workload_, placement, profile_),
                        link_of(workload_, placement, {blocks.front()}),
                        needed(placement, Tier::device)};
      if (!best || price < best->first) best.emplace(price, cut);
    }
    if (!best) return std::nullopt;
    return compare(with(blocks, best->second), best->second);
  }

  [[nodiscard]] NextBest compare(const Placement& placement, const BlockCut& cut) const {
    NextBest next{.cut = cut, .device = needed(placement, Tier::device)};
    const std::array<Bytes, 3> budgets{budgets_.device, budgets_.host, budgets_.nvme};
    for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      const Shortage shortage{tier, needed(placement, tier),
                              budgets[static_cast<std::size_t>(tier)]};
      if (shortage.needed <= shortage.budget) continue;
      next.lacks = shortage;
      return next;
    }
    const Prediction prediction = simulate(build_training_step(workload_, placement), profile_);
    next.step_seconds = prediction.step_seconds;
    for (std::size_t lane = 0; lane < kMachineLanes; ++lane) {
      const double more = prediction.lanes[lane].busy - step_.prediction.lanes[lane].busy;
      if (more <= next.busier_seconds) continue;
      next.busier = static_cast<Lane>(lane);
      next.busier_seconds = more;
    }
    return next;
  }

  [[nodiscard]] Bytes needed(const Placement& placement, Tier tier) const {
    return memory_total(placement, MemorySums(sizes_, placement), tier);
  }

  const Workload& workload_;
  const Budgets& budgets_;
  const MachineProfile& profile_;
  const PlannedStep& step_;
  const PoolSizes sizes_;
  const std::vector<BlockCut> open_;
};

}  // namespace

std::vector<CutReport> report_cuts(const Workload& workload, const Budgets& budgets,
                                   const PlacementRequest& request, const MachineProfile& profile,
                                   const PlannedStep& step) {
  std::vector<Blocks> groups;
  const std::vector<BlockCut>& cuts = step.placement.blocks;
  for (std::uint32_t b = 0; b < cuts.size(); ++b) {
    const auto same = std::ranges::find_if(groups, [&](const Blocks& group) {
      return cuts[group.front()] == cuts[b] &&
             kind_of(workload, group.front()) == kind_of(workload, b);
    });
    if (same == groups.end()) {
      groups.push_back({b});
    } else {
      same->push_back(b);
    }
  }
  const Reporter reporter(workload, budgets, request, profile, step);
  std::vector<CutReport> reports;
  reports.reserve(groups.size());
  for (const Blocks& group : groups) reports.push_back(reporter.report(group));
  return reports;
}

}  // namespace spillway::plan
