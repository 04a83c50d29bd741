#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/plan/step/step_builder.hpp"
#include "tests/plan/plain_choice.hpp"

namespace spillway::plan {
namespace {

constexpr double kWorthTaking = 0.99;  ///< of the first placement's step

/// What to try of an option: what the user said, or first the chooser's own way.
template <class Value>
std::vector<std::optional<Value>> ways(const std::optional<Value>& given,
                                       std::initializer_list<Value> others) {
  std::vector<std::optional<Value>> list{given};
  if (!given) list.insert(list.end(), others.begin(), others.end());
  return list;
}

/// What becomes of internal activations.
struct Internals {
  std::optional<bool> keep;
  bool offload = false;
  Tier offload_to = Tier::host;
  double offload_share = 0;
};

std::vector<Internals> internals(const PlacementRequest& request, bool may_leave) {
  std::vector<Internals> list{{request.keep, request.offload, request.offload_to}};
  if (request.keep) return list;
  for (const bool keep : {true, false}) list.push_back({.keep = keep});
  if (!may_leave) return list;
  for (int tenths = 1; tenths < 10; ++tenths) {
    list.push_back({.keep = {}, .offload_share = tenths / 10.0});
  }
  for (const Tier tier : {Tier::host, Tier::nvme}) {
    list.push_back({.keep = true, .offload = true, .offload_to = tier});
  }
  return list;
}

/// Every request of `list` with each of the ways; `set` writes one into a request.
template <class Way, class Set>
void vary(std::vector<PlacementRequest>& list, const std::vector<Way>& ways, const Set& set) {
  std::vector<PlacementRequest> varied;
  for (const PlacementRequest& request : list) {
    for (const Way& way : ways) set(varied.emplace_back(request), way);
  }
  list = std::move(varied);
}

std::vector<PlacementRequest> requests(const Workload& workload, const PlacementRequest& request,
                                       const MachineProfile& profile) {
  std::vector<PlacementRequest> list{request};
  // The copies of a host backend cost it FWD-BWD time, which the simulator does not see.
  const bool may_leave = !workload.tiled && !profile.cpu_shares_gpu;
  if (profile.gpu_update > 0) {
    vary(list, ways<Tier>(request.state, {Tier::device}),
         [](PlacementRequest& each, const auto& way) { each.state = way; });
  }
  vary(list, ways<Tier>(request.activations, {Tier::host}),
       [](PlacementRequest& each, const auto& way) { each.activations = way; });
  vary(list, internals(request, may_leave), [](PlacementRequest& each, const Internals& way) {
    each.keep = way.keep;
    each.offload = way.offload;
    each.offload_to = way.offload_to;
    each.offload_share = way.offload_share;
  });
  vary(list, ways<bool>(request.resident, {true, false}),
       [](PlacementRequest& each, const auto& way) { each.resident = way; });
  if (workload.rounds > 1) {
    vary(list, ways<bool>(request.sums, {true, false}),
         [](PlacementRequest& each, const auto& way) { each.sums = way; });
  }
  std::erase_if(list, [](const PlacementRequest& each) {
    return each.state == Tier::device && each.resident == false;
  });
  return list;
}

bool uses_disk(const Placement& placement) {
  return placement.any_state(Tier::nvme) || placement.any_output(Tier::nvme) ||
         placement.any_saved(Tier::nvme);
}

}  // namespace

PlannedStep plain_fastest(const Workload& workload, const Budgets& budgets,
                          const PlacementRequest& request, const MachineProfile& profile,
                          const Placement& first) {
  std::vector<Placement> tried{first};
  PlannedStep best{first, simulate(build_training_step(workload, first), profile), 1};
  const double worthwhile = kWorthTaking * best.prediction.step_seconds;
  for (const PlacementRequest& each : requests(workload, request, profile)) {
    auto choice = plain_choice(workload, budgets, each);
    auto* placement = std::get_if<Placement>(&choice);
    if (placement == nullptr || (uses_disk(*placement) && !uses_disk(first))) continue;
    if (std::find(tried.begin(), tried.end(), *placement) != tried.end()) continue;
    tried.push_back(*placement);
    Prediction prediction = simulate(build_training_step(workload, *placement), profile);
    ++best.simulated;
    const double seconds = prediction.step_seconds;
    if (seconds < worthwhile && seconds < best.prediction.step_seconds) {
      best.placement = std::move(*placement);
      best.prediction = std::move(prediction);
    }
  }
  return best;
}

}  // namespace spillway::plan
