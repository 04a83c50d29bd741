#include "runtime/plan/search/balance.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "runtime/plan/pipeline/stages.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/search/fastest.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::plan {
namespace {

using Layers = std::vector<std::uint32_t>;

/// What a stage lacks of memory, and how long it works. Shortage weighs more.
struct Load {
  double excess = 0;   ///< the least that it needs over the budget, less 1; 0 if it fits
  double seconds = 0;  ///< of its busiest lane, or FLOPs where there is no profile

  auto operator<=>(const Load&) const = default;
};

Layers counts_of(const std::vector<BlockRange>& parts) {
  Layers layers;
  for (const BlockRange& part : parts) layers.push_back(part.end - part.first);
  return layers;
}

double flops_of(const Workload& workload) {
  double flops = 0;
  for (const BlockShape& block : workload.blocks) {
    flops += block.forward_flops + block.backward_flops;
  }
  return flops;
}

double busiest(const Prediction& prediction) {
  const auto* const lane = std::ranges::max_element(prediction.lanes, {}, &LaneUse::busy);
  return lane->busy;
}

/// Moves layers from one stage to another until the stages are even.
class Balance {
 public:
  explicit Balance(const BalanceRequest& request)
      : request_(request), by_flops_(counts_of(cut_layers(request.model, request.pipeline))) {}

  [[nodiscard]] Layers even_layers() {
    Layers best = by_flops_;
    std::vector<Load> loads = loads_of(best);
    while (simulated_ < kOpsSimulated) {
      const bool fits = std::ranges::all_of(loads, [](const Load& l) { return l.excess == 0; });
      if (fits && request_.profile == nullptr) break;
      if (!step_from(best, loads)) break;
    }
    return best;
  }

  [[nodiscard]] const Layers& by_flops() const { return by_flops_; }

  /// Returns the seconds of a step with the cut; nothing where a stage does not fit.
  [[nodiscard]] std::optional<double> seconds_of(const Layers& layers) const {
    std::vector<StepPlan> lists;
    for (std::uint32_t stage = 0; stage < request_.pipeline.stages; ++stage) {
      const Workload own = workload_of(layers, stage);
      const auto choice = choose_placement(own, request_.budgets, request_.placement);
      const auto* const placement = std::get_if<Placement>(&choice);
      if (placement == nullptr) return std::nullopt;
      lists.push_back(build_training_step(own, *placement));
    }
    return simulate_stages(lists, *request_.profile).front().step_seconds;
  }

 private:
  /// Takes the best way to move a layer from the stage with the largest load to another. Returns
  /// false where none leaves the loads more even.
  bool step_from(Layers& best, std::vector<Load>& loads) {
    const auto stages = request_.pipeline.stages;
    const auto worst = static_cast<std::uint32_t>(std::ranges::max_element(loads) - loads.begin());
    std::vector<Load> least = sorted(loads);
    bool found = false;
    const Layers from = best;
    for (std::uint32_t giver = worst; giver < from.size(); giver += stages) {
      for (std::uint32_t taker = 0; taker < from.size(); ++taker) {
        if (from[giver] == 1 || taker % stages == worst) continue;
        Layers tried = from;
        --tried[giver];
        ++tried[taker];
        std::vector<Load> tried_loads = loads_of(tried);
        std::vector<Load> tried_sorted = sorted(tried_loads);
        if (!(tried_sorted < least)) continue;
        found = true;
        best = std::move(tried);
        loads = std::move(tried_loads);
        least = std::move(tried_sorted);
      }
    }
    return found;
  }

  [[nodiscard]] static std::vector<Load> sorted(std::vector<Load> loads) {
    std::ranges::sort(loads, std::greater<>());
    return loads;
  }

  [[nodiscard]] Workload workload_of(const Layers& layers, std::uint32_t stage) const {
    Pipeline pipeline = request_.pipeline;
    pipeline.layers = layers;
    return workload_of_stage(request_.model, pipeline, stage);
  }

  [[nodiscard]] std::vector<Load> loads_of(const Layers& layers) {
    std::vector<Load> loads;
    for (std::uint32_t stage = 0; stage < request_.pipeline.stages; ++stage) {
      loads.push_back(load_of(layers, stage));
    }
    return loads;
  }

  /// A stage with the same layers as before is not simulated again.
  [[nodiscard]] Load load_of(const Layers& layers, std::uint32_t stage) {
    const Workload own = workload_of(layers, stage);
    std::vector<std::uint32_t> key{stage};
    for (const BlockRange& chunk : own.stage.chunks) {
      key.insert(key.end(), {chunk.first, chunk.end});
    }
    const auto [known, is_new] = known_.try_emplace(std::move(key));
    if (is_new) known->second = measure(own);
    return known->second;
  }

  [[nodiscard]] Load measure(const Workload& own) {
    const auto choice = choose_placement(own, request_.budgets, request_.placement);
    if (const auto* const shortage = std::get_if<Shortage>(&choice)) {
      const double least = static_cast<double>(shortage->needed.value());
      const double budget = std::max(static_cast<double>(shortage->budget.value()), 1.0);
      return {.excess = least / budget - 1, .seconds = flops_of(own)};
    }
    if (request_.profile == nullptr) return {.seconds = flops_of(own)};
    const StepPlan list = build_training_step(own, std::get<Placement>(choice));
    simulated_ += list.ops.size();
    return {.seconds = busiest(simulate(list, *request_.profile))};
  }

  const BalanceRequest& request_;
  Layers by_flops_;
  std::map<std::vector<std::uint32_t>, Load> known_;  ///< by stage and its layers
  std::size_t simulated_ = 0;                         ///< ops
};

}  // namespace

BalancedLayers balance_layers(const BalanceRequest& request) {
  Balance balance(request);
  BalancedLayers balanced{.layers = balance.even_layers()};
  if (request.profile == nullptr) return balanced;
  const std::optional<double> seconds = balance.seconds_of(balanced.layers);
  const std::optional<double> by_flops = balance.seconds_of(balance.by_flops());
  balanced.seconds = seconds.value_or(0);
  balanced.by_flops = by_flops.value_or(0);
  if (by_flops && !(seconds && *seconds < kWorthwhile * *by_flops)) {
    balanced.layers = balance.by_flops();
    balanced.seconds = *by_flops;
  }
  return balanced;
}

}  // namespace spillway::plan
