#include "runtime/plan/search/speculation.hpp"

#include <utility>

#include "runtime/plan/step/step_builder.hpp"

namespace spillway::plan {
namespace {

/// Shares of the blocks that are tried: backward takes two to three times as long as forward, and
/// the best share lies where both leave the disk idle for as long.
constexpr std::uint32_t kShares = 8;

}  // namespace

void speculate(const Workload& workload, const MachineProfile& profile, PlannedStep& step) {
  if (!may_speculate(workload, step.placement)) return;
  Placement placement = step.placement;
  double to_beat = kWorthwhile * step.prediction.step_seconds;
  for (std::uint32_t share = 1; share <= kShares; ++share) {
    const auto blocks = static_cast<std::uint32_t>(placement.blocks.size());
    placement.speculative_blocks = blocks * share / kShares;
    Prediction prediction = simulate(build_training_step(workload, placement), profile);
    ++step.simulated;
    if (prediction.step_seconds >= to_beat) continue;
    to_beat = prediction.step_seconds;
    step.placement = placement;
    step.prediction = std::move(prediction);
  }
}

}  // namespace spillway::plan
