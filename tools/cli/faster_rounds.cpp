#include "tools/cli/faster_rounds.hpp"

#include "runtime/engine/prepare/step_shape.hpp"

namespace spillway::cli {

std::optional<FasterRounds> faster_rounds(const engine::Planned& planned,
                                          const model::ModelConfig& config) {
  const config::TrainOptions& options = planned.options;
  if (config::rounds_are_micro_batches(options)) return std::nullopt;
  const engine::ShapeRequest request{config, options, planned.workload.replicas, planned.budgets};
  const std::uint32_t windows = options.gradient_accumulation_steps;
  FasterRounds best{options.rounds, planned.prediction.step_seconds / engine::kWorthChanging};
  // Times fall and then rise with the number of rounds, but for small steps on the way.
  int in_vain = 0;
  for (std::uint32_t rounds = 1; rounds <= windows && in_vain < 2; rounds *= 2) {
    const bool takes_long = engine::takes_long(config, rounds);
    if (rounds == options.rounds || windows % rounds != 0 || takes_long) continue;
    const std::optional<double> seconds = engine::price_shape(
        request, planned.profile,
        {.rounds = rounds, .micro_batch = options.micro_batch, .accumulation = windows});
    const bool is_better = seconds && *seconds < best.step_seconds;
    if (is_better) best = {rounds, *seconds};
    in_vain = is_better || rounds < best.rounds ? 0 : in_vain + 1;
  }
  return best.rounds == options.rounds ? std::nullopt : std::optional(best);
}

}  // namespace spillway::cli
