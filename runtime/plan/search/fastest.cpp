#include "runtime/plan/search/fastest.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/plan/placement/dataflow_graph.hpp"
#include "runtime/plan/predict/price.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/search/descent.hpp"
#include "runtime/plan/step/builder/builder.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::plan {
namespace {

constexpr std::size_t kLeastSimulated = 3;  ///< plans, also of a step with very many ops

/// Ops that descents simulate, and steps that one of them takes at least to find anything.
constexpr std::size_t kOpsDescended = 250'000, kStepsOfADescent = 32;

struct Candidate {
  Placement placement;
  double least_seconds = 0;  ///< no step is shorter
  std::size_t order = 0;     ///< of its request
};

/// What becomes of saved activations.
struct Saved {
  std::optional<bool> keep;
  bool offload = false;
  Tier offload_to = Tier::host;
  double offload_share = 0;
};

/// Replaces each request of `list` by one for each of the ways; `set` writes a way into a request.
template <class Way, class Set>
void vary(std::vector<PlacementRequest>& list, const std::vector<Way>& ways, const Set& set) {
  std::vector<PlacementRequest> varied;
  for (const PlacementRequest& request : list) {
    for (const Way& way : ways) set(varied.emplace_back(request), way);
  }
  list = std::move(varied);
}

/// Returns what to try for a data node: what the user asked for; else the chooser's own way, in
/// which blocks may differ, and then, if several tiers are `open`, each of them.
template <class Value>
std::vector<std::optional<Value>> ways(const std::optional<Value>& given, bool open,
                                       std::initializer_list<Value> others) {
  std::vector<std::optional<Value>> list{given};
  if (!given && open) list.insert(list.end(), others.begin(), others.end());
  return list;
}

std::vector<Saved> saved_ways(const PlacementRequest& request, const std::vector<BlockCut>& cuts) {
  std::vector<Saved> list{{request.keep, request.offload, request.offload_to}};
  if (request.keep) return list;
  for (const bool keep : {true, false}) list.push_back({.keep = keep});
  const auto open = [&](Tier tier) {
    return std::ranges::any_of(cuts, [&](const BlockCut& cut) { return cut.saved == tier; });
  };
  if (open(Tier::host)) {
    for (int tenths = 1; tenths < 10; ++tenths) {
      list.push_back({.keep = {}, .offload_share = tenths / 10.0});
    }
    list.push_back({.keep = true, .offload = true});
  }
  if (open(Tier::nvme)) list.push_back({.keep = true, .offload = true, .offload_to = Tier::nvme});
  return list;
}

/// Returns a block whose graph has every data node, of a stage one of its own, if there is one.
std::uint32_t sample_block(const Workload& workload) {
  for (std::uint32_t b = 1; b < workload.blocks.size(); ++b) {
    const std::uint32_t layer = workload.layer_of(b);
    if (workload.runs(layer) && workload.output_waits(layer)) return b;
  }
  return workload.blocks.size() > 2 ? 1 : 0;
}

/// Returns the request and those that leave fewer cuts open: for each data node the tiers that it
/// has among the open cuts, by themselves and together with those of the other nodes.
std::vector<PlacementRequest> narrowed(const Workload& workload, const PlacementRequest& request,
                                       const MachineProfile& profile, SearchEffort effort) {
  const std::vector<BlockCut> cuts = open_cuts(workload, request, profile);
  const auto any = [&](const auto& holds) { return std::ranges::any_of(cuts, holds); };
  const bool updates = any([](const BlockCut& cut) { return cut.state == Tier::device; });
  const bool passes = any([](const BlockCut& cut) { return cut.output == Tier::host; });
  const bool whole = effort == SearchEffort::whole;
  const bool streams = whole && any([](const BlockCut& cut) { return !cut.resident(); });
  const bool sums = whole && any([](const BlockCut& cut) {
                      return cut.gradients == Tier::device && cut.state != Tier::device;
                    });
  std::vector<PlacementRequest> list{request};
  vary(list, ways(request.state, updates, {Tier::device}),
       [](PlacementRequest& each, const auto& way) { each.state = way; });
  vary(list, ways(request.activations, passes, {Tier::host}),
       [](PlacementRequest& each, const auto& way) { each.activations = way; });
  vary(list, saved_ways(request, cuts), [](PlacementRequest& each, const Saved& way) {
    each.keep = way.keep;
    each.offload = way.offload;
    each.offload_to = way.offload_to;
    each.offload_share = way.offload_share;
  });
  vary(list, ways(request.resident, streams, {true, false}),
       [](PlacementRequest& each, const auto& way) { each.resident = way; });
  vary(list, ways(request.sums, sums, {true, false}),
       [](PlacementRequest& each, const auto& way) { each.sums = way; });
  std::erase_if(list, [&](const PlacementRequest& each) {
    // State on the device keeps parameters and gradients there, so these ways are one.
    const bool is_same = each.resident == request.resident && each.sums == request.sums;
    if (each.state == Tier::device && !is_same) return true;
    return !any([&](const BlockCut& cut) { return allows(workload, each, cut); });
  });
  return list;
}

/// Returns the request with gathers further ahead: more of them are hidden, until they hold up the
/// reductions, which share the lane.
std::vector<PlacementRequest> further_ahead(const PlacementRequest& request) {
  std::vector<PlacementRequest> list;
  for (const std::uint32_t further : {1U, 2U, 3U}) {
    list.push_back(request);
    list.back().prefetch = kUsualPrefetch + further;
  }
  return list;
}

/// Whether blocks may be placed one by one: those of tiles belong to layers, those of stages to
/// ranks, and ranks place theirs alike.
bool may_descend(const Workload& workload) {
  return !workload.external && !workload.operator_tiles && workload.grid().ranks() == 1;
}

/// Returns the request with as little on the device as it leaves open: of the parameters, and of
/// everything.
std::vector<PlacementRequest> lean_requests(const PlacementRequest& request) {
  PlacementRequest lean = request;
  lean.device_updates = false;
  if (!lean.resident && lean.state != Tier::device) lean.resident = false;
  std::vector<PlacementRequest> list{lean};
  if (!lean.keep) lean.keep = false;
  if (!lean.activations) lean.activations = Tier::host;
  list.push_back(lean);
  return list;
}

/// Returns the placement that a search begins with: `first`, or, where the device is to run updates
/// in it and cannot, one in which the host does, if that fits.
Placement start_of(const Workload& workload, const Budgets& budgets,
                   const PlacementRequest& request, const Placement& first) {
  if (request.device_updates || request.state || !first.any_state(Tier::device)) return first;
  const auto choice = choose_placement(workload, budgets, request);
  const auto* const placement = std::get_if<Placement>(&choice);
  const bool fits = placement != nullptr && (!placement->uses_disk() || first.uses_disk());
  return fits ? *placement : first;
}

/// Returns the shortest step that a descent reaches from the starts; the first of them, unless
/// another is shorter, and, if that is the first placement of all, worthwhile.
PlannedStep best_of_descents(const detail::DescentRequest& question,
                             std::vector<PlannedStep> starts, bool is_first) {
  PlannedStep best = starts.front();
  const double to_beat = best.prediction.step_seconds * (is_first ? kWorthwhile : 1);
  std::size_t simulated = 0;
  for (PlannedStep& start : starts) {
    PlannedStep step = detail::descend(question, std::move(start));
    simulated += step.simulated;
    const double seconds = step.prediction.step_seconds;
    if (seconds < to_beat && seconds < best.prediction.step_seconds) best = std::move(step);
  }
  best.simulated = simulated;
  return best;
}

/// Search for the shortest step, beginning with that of `first`, a placement for `request`.
class PlacementSearch {
 public:
  PlacementSearch(const Workload& workload, const Budgets& budgets, const PlacementRequest& request,
                  const MachineProfile& profile, const Placement& first, SearchEffort effort)
      : workload_(workload),
        budgets_(budgets),
        profile_(profile),
        first_(first),
        builder_(workload, first),
        request_(request) {
    builder_.training();
    best_ = {first, simulate(builder_.plan(), profile), 1};
    worthwhile_ = kWorthwhile * best_.prediction.step_seconds;
    const std::size_t ops =
        effort == SearchEffort::quick ? kOpsSimulated / 8 : kOpsSimulated * 5 / 8;
    at_most_ = std::max<std::size_t>(kLeastSimulated, ops / builder_.plan().ops.size());
  }

  /// Tries placements for the requests, at most so many.
  void try_each(const std::vector<PlacementRequest>& requests) {
    const std::size_t end = best_.simulated + at_most_;
    std::size_t place = 0;
    for (Candidate& each : candidates(requests)) {
      // No step is shorter than its bound, and those that follow have longer ones.
      const double to_beat = std::min(worthwhile_, best_.prediction.step_seconds);
      if (each.least_seconds > to_beat || best_.simulated == end) break;
      builder_.restart(each.placement);
      builder_.training();
      std::optional<Prediction> prediction = simulate_within(builder_.plan(), profile_, to_beat);
      ++best_.simulated;
      if (!prediction) continue;
      const double seconds = prediction->step_seconds;
      // Among equals, the one that was asked for first is taken.
      const bool earlier = seconds == best_.prediction.step_seconds && each.order < place;
      if (seconds < worthwhile_ && (seconds < best_.prediction.step_seconds || earlier)) {
        best_.placement = std::move(each.placement);
        best_.prediction = std::move(*prediction);
        request_ = requests[each.order];
        place = each.order;
      }
    }
  }

  [[nodiscard]] const PlacementRequest& request() const { return request_; }  ///< of the best
  PlannedStep take() { return std::move(best_); }

 private:
  /// Returns placements for the requests, without those that use the disk where `first` does not,
  /// each once, by the time that their step takes at least.
  [[nodiscard]] std::vector<Candidate> candidates(
      const std::vector<PlacementRequest>& requests) const {
    std::vector<Candidate> list;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      auto choice = choose_placement(workload_, budgets_, requests[i]);
      auto* placement = std::get_if<Placement>(&choice);
      if (placement == nullptr || (placement->uses_disk() && !first_.uses_disk())) continue;
      const auto same = [&](const Candidate& other) { return other.placement == *placement; };
      if (*placement == first_ || std::ranges::any_of(list, same)) continue;
      const double least = least_step_seconds(workload_, *placement, profile_);
      list.push_back({std::move(*placement), least, i});
    }
    std::ranges::stable_sort(list, {}, &Candidate::least_seconds);
    return list;
  }

  const Workload& workload_;
  const Budgets& budgets_;
  const MachineProfile& profile_;
  const Placement& first_;
  Builder builder_;
  PlannedStep best_;
  PlacementRequest request_;
  double worthwhile_ = 0;
  std::size_t at_most_ = 0;
};

}  // namespace

bool allows(const Workload& workload, const PlacementRequest& request, const BlockCut& cut) {
  const bool waits = cut.gradients == Tier::device;
  const bool sums = workload.sums_gradients() && cut.state != Tier::device;
  if (request.state.value_or(cut.state) != cut.state) return false;
  if (request.resident.value_or(cut.resident()) != cut.resident()) return false;
  if (request.activations.value_or(cut.output) != cut.output) return false;
  if (sums && request.sums.value_or(waits) != waits) return false;
  if (!request.keep) return true;
  if (!*request.keep) return !cut.saved;
  return cut.saved == Tier::device || (request.offload && cut.saved == request.offload_to);
}

std::vector<BlockCut> open_cuts(const Workload& workload, const PlacementRequest& request,
                                const MachineProfile& profile) {
  Placement placement;
  placement.blocks.resize(workload.blocks.size());
  const DataflowGraph graph = block_graph(workload, placement, sample_block(workload));
  std::vector<BlockCut> cuts = admissible_cuts(workload, graph);
  std::erase_if(cuts, [&](const BlockCut& cut) {
    if (!allows(workload, request, cut)) return true;
    const bool updates = cut.state == Tier::device && !request.state;
    // A host backend's memory is the host's: a copy costs FWD-BWD its cores and wins nothing.
    const bool leaves = cut.saved && cut.saved != Tier::device && !request.keep;
    return (updates && profile.gpu_update == 0) || (leaves && profile.cores.compute > 0);
  });
  return cuts;
}

PlannedStep fastest_way(const Workload& workload, const Budgets& budgets,
                        const PlacementRequest& request, const MachineProfile& profile,
                        const Placement& first, SearchEffort effort) {
  PlacementRequest possible = request;
  possible.device_updates = profile.gpu_update > 0;
  const Placement start = start_of(workload, budgets, possible, first);
  PlacementSearch search(workload, budgets, possible, profile, start, effort);
  search.try_each(narrowed(workload, possible, profile, effort));
  if (workload.gathers() && !request.prefetch) search.try_each(further_ahead(search.request()));
  return search.take();
}

PlannedStep fastest_placement(const Workload& workload, const Budgets& budgets,
                              const PlacementRequest& request, const MachineProfile& profile,
                              const Placement& first, SearchEffort effort) {
  PlannedStep best = fastest_way(workload, budgets, request, profile, first, effort);
  // Steps with many ops are too few for a descent.
  const std::size_t descents = kOpsDescended / (kStepsOfADescent * best.prediction.ops.size());
  if (effort == SearchEffort::quick || !may_descend(workload) || descents == 0) return best;
  std::vector<PlannedStep> starts{best};
  for (const PlacementRequest& lean : lean_requests(request)) {
    auto choice = choose_placement(workload, budgets, lean);
    auto* const placement = std::get_if<Placement>(&choice);
    if (placement == nullptr || (placement->uses_disk() && !first.uses_disk())) continue;
    const bool known = std::ranges::count(starts, *placement, &PlannedStep::placement) > 0;
    if (known || starts.size() >= descents) continue;
    starts.push_back({*placement, simulate(build_training_step(workload, *placement), profile), 1});
  }
  const std::size_t ops = kOpsDescended / starts.size();
  return best_of_descents({workload, budgets, request, profile, ops}, std::move(starts),
                          best.placement == first);
}

}  // namespace spillway::plan
