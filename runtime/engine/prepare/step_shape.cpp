#include "runtime/engine/prepare/step_shape.hpp"

#include <fmt/format.h>

#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/search/choose.hpp"
#include "runtime/plan/search/fastest.hpp"

namespace spillway::engine {
namespace {

/// A gain below this is within what a prediction is off.
constexpr double kWorthChanging = 1.02;
/// Numbers of rounds in a row that gain nothing, after which more are not tried: times fall and
/// then rise with the number of rounds, but for small steps on the way.
constexpr int kMostInVain = 2;
/// Micro-batches are tried down to so small a part of the largest.
constexpr std::uint32_t kSmallestPart = 4;

std::vector<std::uint32_t> divisors_of(std::uint32_t number) {
  std::vector<std::uint32_t> list;
  for (std::uint32_t each = 1; each <= number; ++each) {
    if (number % each == 0) list.push_back(each);
  }
  return list;
}

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
  options.tensor.index = 0;  // the ranks of a tensor group have one plan
  ShapedStep step{.workload = make_workload(request.model, options, request.replicas),
                  .request = placement_request(options),
                  .first = {}};
  auto choice = plan::choose_placement(step.workload, request.budgets, step.request);
  auto* const placement = std::get_if<plan::Placement>(&choice);
  if (placement == nullptr) return std::nullopt;
  step.first = std::move(*placement);
  return step;
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
      const StepShape shape{rounds, micro_batch, accumulation};
      const std::optional<double> seconds = price(shape);
      if (!seconds) continue;
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
  std::optional<double> price(const StepShape& shape) {
    const std::optional<ShapedStep> step = step_of(request_, shape);
    if (!step) return std::nullopt;
    const plan::PlannedStep fastest = plan::fastest_placement(step->workload, request_.budgets,
                                                              step->request, profile_, step->first);
    list_.push_back({shape, fastest.prediction.step_seconds});
    return list_.back().step_seconds;
  }

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
  return options.automatic.rounds && !config::rounds_are_micro_batches(options);
}

void take_shape(config::TrainOptions& options, const StepShape& shape) {
  options.rounds = shape.rounds;
  options.micro_batch = shape.micro_batch;
  options.gradient_accumulation_steps = shape.accumulation;
}

StepShape first_shape(const ShapeRequest& request) {
  StepShape shape = shape_of(request.options);
  for (const std::uint32_t rounds : divisors_of(shape.accumulation)) {
    shape.rounds = rounds;
    if (step_of(request, shape)) return shape;
  }
  return shape_of(request.options);
}

ChosenShape fastest_shape(const ShapeRequest& request, const plan::MachineProfile& profile) {
  const StepShape own = shape_of(request.options);
  ShapePrices prices(request, profile);
  const std::uint32_t parts = request.options.automatic.micro_batch ? kSmallestPart : 1;
  for (std::uint32_t part = 1; part <= parts && own.micro_batch % part == 0; part *= 2) {
    prices.price_rounds(own.micro_batch / part, own.accumulation * part);
  }
  SPILLWAY_ASSERT(!prices.empty());  // the first shape fits
  return prices.choice();
}

std::string to_text(const ChosenShape& choice) {
  return fmt::format("spillway.rounds \"auto\": {}: simulated, a step takes {:.4g} s{}",
                     to_text(choice.chosen.shape), choice.chosen.step_seconds,
                     choice.next
                         ? fmt::format("; the next best, {}, would take {:.4g} s",
                                       to_text(choice.next->shape), choice.next->step_seconds)
                         : std::string(", and no other fits"));
}

}  // namespace spillway::engine
