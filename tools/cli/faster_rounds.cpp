#include "tools/cli/faster_rounds.hpp"

#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/planner.hpp"

namespace spillway::cli {
namespace {

/// A gain below this is within what a prediction is off.
constexpr double kWorthwhile = 1.02;
/// Passes through the model, of all rounds together, from which on a plan takes its time.
constexpr std::uint64_t kMostPasses = 100'000;

/// The machine that a plan was made for, with what that plan knows of it.
class KnownMachine final : public engine::PlanningMachine {
 public:
  explicit KnownMachine(const engine::Planned& planned) : planned_(planned) {}
  [[nodiscard]] plan::Budgets budgets(const config::TrainOptions& /*options*/,
                                      const plan::Workload& /*workload*/) override {
    return planned_.budgets;
  }
  [[nodiscard]] plan::MachineProfile profile(const config::TrainOptions& /*options*/,
                                             const plan::Workload& /*whole*/,
                                             const plan::Budgets& /*budgets*/,
                                             const plan::Placement& /*fitting*/) override {
    return planned_.profile;
  }

 private:
  const engine::Planned& planned_;
};

/// Returns the step's seconds with other rounds; nothing where it does not fit then.
std::optional<double> seconds_with(std::uint32_t rounds, const engine::Planned& planned,
                                   const model::ModelConfig& config) {
  config::TrainOptions options = planned.options;
  options.rounds = rounds;
  KnownMachine machine(planned);
  engine::RankGroups on_paper(planned.place);
  try {
    return engine::plan_rank(config, options, planned.workload.replicas,
                             engine::StageLayers::chosen, machine, on_paper,
                             [](const std::string&) {})
        .prediction.step_seconds;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
    return std::nullopt;
  }
}

}  // namespace

std::optional<FasterRounds> faster_rounds(const engine::Planned& planned,
                                          const model::ModelConfig& config) {
  const plan::Workload& workload = planned.workload;
  if (workload.stage.count > 1 || config::rounds_are_micro_batches(planned.options)) {
    return std::nullopt;
  }
  const std::uint32_t windows = planned.options.gradient_accumulation_steps;
  FasterRounds best{planned.options.rounds, planned.prediction.step_seconds / kWorthwhile};
  // Times fall and then rise with the number of rounds, but for small steps on the way.
  int in_vain = 0;
  for (std::uint32_t rounds = 1; rounds <= windows && in_vain < 2; rounds *= 2) {
    const bool takes_long = std::uint64_t{rounds} * workload.blocks.size() > kMostPasses;
    if (rounds == planned.options.rounds || windows % rounds != 0 || takes_long) continue;
    const std::optional<double> seconds = seconds_with(rounds, planned, config);
    const bool is_better = seconds && *seconds < best.step_seconds;
    if (is_better) best = {rounds, *seconds};
    in_vain = is_better || rounds < best.rounds ? 0 : in_vain + 1;
  }
  return best.rounds == planned.options.rounds ? std::nullopt : std::optional(best);
}

}  // namespace spillway::cli
