#include <fmt/format.h>

#include <memory>

#include "runtime/base/error.hpp"
#include "runtime/engine/calibrate.hpp"
#include "runtime/plan/step_builder.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/plan_text.hpp"
#include "tools/cli/train_flags.hpp"

namespace spillway::cli {
namespace {

struct PlanFlags {
  TrainFlags train;
  bool explain = false;
};

nlohmann::ordered_json run(const PlanFlags& flags, bool json) {
  engine::TrainOptions options = flags.train.options();
  const auto config = flags.train.model_config();
  check(config.has_value(), ErrorCode::invalid_argument,
        "no model: give --model CONFIG_JSON or --from HF_DIR");
  engine::resolve(options, *config);
  const engine::ModelRuntime model = engine::make_model_runtime(*config, options);
  const plan::Workload workload = engine::make_workload(*config, *model.transformer, options);
  const plan::Budgets budgets = engine::make_budgets(options, flags.train.run);
  const plan::Placement placement = engine::place(*config, options, workload, budgets);
  const bool on_disk =
      placement.any_state(plan::Tier::nvme) || placement.any_activations(plan::Tier::nvme);
  const engine::CalibrationRequest request{
      .config = *config,
      .options = options,
      .model = model,
      .workload = workload,
      .state_directories = on_disk
                               ? std::optional(engine::state_directories(options, flags.train.run))
                               : std::nullopt};
  engine::MachineTuning known(flags.train.profile);
  const engine::Tuning tuning =
      engine::tune(request, placement, known,
                   [](const std::string& text) { fmt::print(stderr, "note: {}\n", text); });
  const plan::MachineProfile profile = engine::calibrate(request, tuning);
  const plan::StepPlan step = plan::build_training_step(workload, placement);
  const plan::Prediction prediction = plan::simulate(step, profile);
  const PlanView view{.workload = workload,
                      .placement = placement,
                      .budgets = budgets,
                      .profile = profile,
                      .prediction = prediction,
                      .memory = plan::memory_items(workload, placement)};
  if (!json) {
    fmt::print("{}", to_text(view));
    if (flags.explain) fmt::print("{}", plan::to_text(step));
  }
  return to_json(view);
}

}  // namespace

void add_plan(CLI::App& app, Session& session) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command =
      add_command(app, session, "plan", "Says what fits where and how long a step will take",
                  [flags, &session] { return run(*flags, session.json); });
  flags->train.add_to(*command);
  flags->train.run = ".";
  command->add_option("--run", flags->train.run, "Run directory: its disk holds the state");
  command->add_flag("--explain", flags->explain, "List every op of the step");
}

}  // namespace spillway::cli
