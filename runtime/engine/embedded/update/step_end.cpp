#include "runtime/engine/embedded/update/step_end.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"

namespace spillway::engine {
namespace {

/// The reciprocals of divisors between these are normal numbers of fp32.
constexpr double kLeastDivisor = 3e-39;
constexpr double kMostDivisor = 8e37;

std::uint64_t leaves_of(std::uint64_t elements) {
  return round_up(elements, kLeafParameters) / kLeafParameters;
}

}  // namespace

StepEnd::StepEnd(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                 const StepEndParts& parts)
    : options_(options), layout_(layout), parts_(parts) {
  std::uint64_t leaves = 0;
  for (const ParameterRange& range : layout.ranges) {
    elements_.push_back(range.count);
    leaves += leaves_of(range.count);
  }
  leaf_sums_.reserve(leaves);
}

/// Returns once all gradients of the step are complete, and their norm can be had.
void StepEnd::gather() {
  PlanRunner& runner = parts_.runner;
  parts_.passes.check_left();
  runner.check_sound();
  parts_.state.check_whole();
  if (runner.phase() == PlanRunner::Phase::gathered) return;
  parts_.gradient_counts.check_complete();
  const EmbeddedPlan plan = gathering_plan(layout_.workload);
  if (layout_.streams()) {
    runner.park();
  } else {
    runner.start(plan);
  }
  parts_.gradients.land();
  parts_.gradients.fill_missing();
  // Norms of streamed parameters wait for nobody: all gradients are there.
  if (layout_.streams()) runner.start(plan);
  runner.finish();
}

std::span<const double> StepEnd::leaf_sums() {
  gather();
  leaf_sums_.clear();
  for (const ParameterRange& range : layout_.ranges) {
    const std::span<const double> sums =
        parts_.engine.norm_leaves(range.block)
            .subspan(range.first / kLeafParameters, leaves_of(range.count));
    leaf_sums_.insert(leaf_sums_.end(), sums.begin(), sums.end());
  }
  return leaf_sums_;
}

double StepEnd::grad_norm(double divisor) {
  check(divisor >= kLeastDivisor && divisor <= kMostDivisor, ErrorCode::invalid_argument,
        fmt::format("gradient_divisor is {}; it must be above 0, from {:.2} to {:.2}: gradients "
                    "are multiplied by its reciprocal in fp32",
                    divisor, kLeastDivisor, kMostDivisor));
  return norm_of(leaf_sums(), elements_) / divisor;
}

EmbeddedResult StepEnd::step(const EmbeddedStep& step) {
  check(step.max_norm >= 0, ErrorCode::invalid_argument,
        fmt::format("max_norm is {}; it must be above 0, or 0 for no clipping", step.max_norm));
  const double own = grad_norm(step.gradient_divisor);
  const double norm = step.grad_norm.value_or(own);
  parts_.values.order_uploads(step.readers);
  const bool updates = parts_.updates.decide(norm, step, parts_.gradient_counts.skipped());
  parts_.record.end_step();
  const EmbeddedResult result{
      .step = parts_.updates.steps(), .grad_norm = norm, .skipped = !updates};
  parts_.gradient_counts.forget();
  const EmbeddedPlan plan = updating_plan(options_);
  if (!updates) {
    parts_.runner.park();
  } else if (plan == EmbeddedPlan::update) {
    parts_.runner.start(plan);
    parts_.runner.finish();
  } else {
    parts_.passes.begin(plan);  // the update runs beside the next passes
  }
  return result;
}

}  // namespace spillway::engine
