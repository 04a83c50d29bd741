#include "runtime/plan/fastest.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/plan/step_builder.hpp"

namespace spillway::plan {
namespace {

constexpr double kWorthwhile = 0.99;  ///< of the first placement's step

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
  double offload_share = 0;
};

std::vector<Internals> internals(const Workload& workload, const PlacementRequest& request) {
  std::vector<Internals> list{{request.keep, request.offload}};
  if (request.keep) return list;
  for (const bool keep : {true, false}) list.push_back({.keep = keep});
  if (workload.tiled) return list;
  for (int tenths = 1; tenths < 10; ++tenths) {
    list.push_back({.keep = {}, .offload_share = tenths / 10.0});
  }
  list.push_back({.keep = true, .offload = true});
  return list;
}

std::vector<PlacementRequest> requests(const Workload& workload, const PlacementRequest& request) {
  std::vector<PlacementRequest> list;
  const bool rounds = workload.rounds > 1;
  const auto sums = rounds ? ways<bool>(request.sums, {false}) : std::vector{request.sums};
  const auto activations = workload.tiled ? std::vector{request.activations}
                                          : ways<Tier>(request.activations, {Tier::host});
  for (const auto& home : activations) {
    for (const auto& [keep, offload, share] : internals(workload, request)) {
      for (const auto& resident : ways<bool>(request.resident, {true, false})) {
        for (const auto& sum : sums) {
          PlacementRequest each = request;
          each.activations = home;
          each.keep = keep;
          each.offload = offload;
          each.offload_share = share;
          each.resident = resident;
          each.sums = sum;
          const bool excluded = each.state == Tier::device && each.resident == false;
          if (!excluded) list.push_back(each);
        }
      }
    }
  }
  return list;
}

bool uses_disk(const Placement& placement) {
  return placement.any_state(Tier::nvme) || placement.any_activations(Tier::nvme);
}

}  // namespace

PlannedStep fastest_placement(const Workload& workload, const Budgets& budgets,
                              const PlacementRequest& request, const MachineProfile& profile,
                              const Placement& first) {
  std::vector<Placement> tried{first};
  PlannedStep best{first, simulate(build_training_step(workload, first), profile)};
  const double worthwhile = kWorthwhile * best.prediction.step_seconds;
  for (const PlacementRequest& each : requests(workload, request)) {
    auto choice = choose_placement(workload, budgets, each);
    auto* placement = std::get_if<Placement>(&choice);
    if (placement == nullptr || (uses_disk(*placement) && !uses_disk(first))) continue;
    if (std::find(tried.begin(), tried.end(), *placement) != tried.end()) continue;
    tried.push_back(*placement);
    Prediction prediction = simulate(build_training_step(workload, *placement), profile);
    const double seconds = prediction.step_seconds;
    if (seconds < worthwhile && seconds < best.prediction.step_seconds) {
      best = {std::move(*placement), std::move(prediction)};
    }
  }
  return best;
}

}  // namespace spillway::plan
