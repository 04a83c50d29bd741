#include "runtime/engine/prepare/step_shape.hpp"

#include <fmt/format.h>

#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/divisors.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/search/choose.hpp"
#include "runtime/plan/search/fastest.hpp"

namespace spillway::engine {
namespace {

/// Numbers of rounds in a row that gain nothing, after which more are not tried: times fall and
/// then rise with the number of rounds, but for small steps on the way.
constexpr int kMostInVain = 2;
/// Micro-batches are tried down to so small a part of the largest.
constexpr std::uint32_t kSmallestPart = 4;
/// Passes through the blocks, of all rounds together, from which on a simulation takes its time.
constexpr std::uint64_t kLongStep = 100'000;

/// A shape's step, as far as it is needed to simulate it.
struct ShapedStep {
  plan::Workload workload;
  plan::PlacementRequest request;
  plan::Placement first;
};

/// Returns nothing for a shape that does not fit.
std::optional<ShapedStep> step_of(const ShapeRequest& request, const StepShape& shape) {
  config::TrainOptions options = request.options;
  take_shape(options, shape);
  ShapedStep step{.workload = make_workload(request.model, options, request.replicas),
                  .request = placement_request(options),
                  .first = {}};
  auto choice = plan::choose_placement(step.workload, request.budgets, step.request);
  auto* const placement = std::get_if<plan::Placement>(&choice);
  if (placement == nullptr) return std::nullopt;
  step.first = std::move(*placement);
  return step;
}

/// Returns the shape's step; nothing where it does not fit.
std::optional<plan::PlannedStep> search_shape(const ShapeRequest& request,
                                              const plan::MachineProfile& profile,
                                              const StepShape& shape, plan::SearchEffort effort) {
  const std::optional<ShapedStep> step = step_of(request, shape);
  if (!step) return std::nullopt;
  return plan::fastest_placement(step->workload, request.budgets, step->request, profile,
                                 step->first, effort);
}

/// The shapes that have been priced.
class ShapePrices {
 public:
  ShapePrices(const ShapeRequest& request, const plan::MachineProfile& profile)
      : request_(request), profile_(profile) {}

  /// Prices micro-batches of one size in more and more rounds.
  void price_rounds(std::uint32_t micro_batch, std::uint32_t accumulation) {
    std::optional<double> shortest;
    int in_vain = 0;
    for (const std::uint32_t rounds : divisors_of(accumulation)) {
      if (!list_.empty() && takes_long(request_.model, rounds)) break;
      const StepShape shape{rounds, micro_batch, accumulation};
      const std::optional<double> seconds =
          price_shape(request_, profile_, shape, plan::SearchEffort::quick);
      if (!seconds) continue;
      list_.push_back({shape, *seconds});
      const bool gains = !shortest || *seconds < *shortest;
      if (gains) shortest = seconds;
      in_vain = gains ? 0 : in_vain + 1;
      if (in_vain == kMostInVain) break;
    }
  }

  [[nodiscard]] ChosenShape choice() const {
    std::size_t chosen = 0;
    for (std::size_t i = 1; i < list_.size(); ++i) {
      if (kWorthChanging * list_[i].step_seconds < list_[chosen].step_seconds) chosen = i;
    }
    ChosenShape choice{.chosen = list_[chosen]};
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const bool shorter = !choice.next || list_[i].step_seconds < choice.next->step_seconds;
      if (i != chosen && shorter) choice.next = list_[i];
    }
    return choice;
  }
  [[nodiscard]] bool empty() const { return list_.empty(); }

 private:
  const ShapeRequest& request_;
  const plan::MachineProfile& profile_;
  std::vector<PricedShape> list_;
};

StepShape shape_of(const config::TrainOptions& options) {
  return {options.rounds, options.micro_batch, options.gradient_accumulation_steps};
}

std::string to_text(const StepShape& shape) {
  return fmt::format("rounds {}, micro-batch {}, accumulation {}", shape.rounds, shape.micro_batch,
                     shape.accumulation);
}

}  // namespace

bool leaves_shape_open(const config::TrainOptions& options) {
  const bool has_others = options.automatic.micro_batch ? config::windows_of_step(options) > 1
                                                        : options.gradient_accumulation_steps > 1;
  return options.automatic.rounds && has_others && !config::rounds_are_micro_batches(options);
}

bool takes_long(const model::ModelConfig& model, std::uint32_t rounds) {
  return (std::uint64_t{model.layers} + 2) * rounds > kLongStep;
}

void take_shape(config::TrainOptions& options, const StepShape& shape) {
  options.rounds = shape.rounds;
  options.micro_batch = shape.micro_batch;
  options.gradient_accumulation_steps = shape.accumulation;
}

plan::Budgets take_first_rounds(config::TrainOptions& options, const model::ModelConfig& model,
                                const plan::Replicas& replicas, const BudgetsFor& budgets) {
  config::TrainOptions tried = options;
  for (const std::uint32_t rounds : divisors_of(options.gradient_accumulation_steps)) {
    tried.rounds = rounds;
    const plan::Workload workload = make_workload(model, tried, replicas);
    const plan::Budgets found = budgets(tried, workload);
    const auto choice = plan::choose_placement(workload, found, placement_request(tried));
    if (!std::holds_alternative<plan::Placement>(choice)) continue;
    options.rounds = rounds;
    return found;
  }
  return budgets(options, make_workload(model, options, replicas));
}

std::optional<double> price_shape(const ShapeRequest& request, const plan::MachineProfile& profile,
                                  const StepShape& shape, plan::SearchEffort effort) {
  const std::optional<plan::PlannedStep> step = search_shape(request, profile, shape, effort);
  if (!step) return std::nullopt;
  return step->prediction.step_seconds;
}

FoundShape fastest_shape(const ShapeRequest& request, const plan::MachineProfile& profile) {
  const StepShape own = shape_of(request.options);
  ShapePrices prices(request, profile);
  const std::uint32_t parts = request.options.automatic.micro_batch ? kSmallestPart : 1;
  for (std::uint32_t part = 1; part <= parts && own.micro_batch % part == 0; part *= 2) {
    prices.price_rounds(own.micro_batch / part, own.accumulation * part);
  }
  SPILLWAY_ASSERT(!prices.empty());  // the first shape fits
  ChosenShape choice = prices.choice();
  if (!choice.next) return {choice};
  const auto search = [&](PricedShape& each) {
    auto step = search_shape(request, profile, each.shape, plan::SearchEffort::whole);
    if (step) each.step_seconds = step->prediction.step_seconds;
    return step;
  };
  std::optional<plan::PlannedStep> step = search(choice.chosen), other = search(*choice.next);
  if (kWorthChanging * choice.next->step_seconds < choice.chosen.step_seconds) {
    std::swap(choice.chosen, *choice.next);
    std::swap(step, other);
  }
  return {choice, std::move(step)};
}

std::string to_text(const ChosenShape& choice) {
  const auto& [chosen, next] = choice;
  std::string text = fmt::format("spillway.rounds \"auto\": {}: simulated, a step takes {:.4g} s",
                                 to_text(chosen.shape), chosen.step_seconds);
  if (!next) return text + ", and no other fits";
  return text +
         fmt::format(
             "; the next best, {}, would take {:.4g} s{}", to_text(next->shape), next->step_seconds,
             next->step_seconds < chosen.step_seconds ? ", within what a prediction is off" : "");
}

}  // namespace spillway::engine
