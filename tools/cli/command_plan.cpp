#include <fmt/format.h>

#include <array>
#include <memory>

#include "runtime/base/error.hpp"
#include "runtime/engine/machine/budgets.hpp"
#include "runtime/engine/machine/calibrate.hpp"
#include "runtime/engine/prepare/automatic.hpp"
#include "runtime/engine/prepare/model_runtime.hpp"
#include "runtime/engine/prepare/score_gradients.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/placement/fastest.hpp"
#include "runtime/plan/predict/flops.hpp"
#include "runtime/plan/step/check.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tools/bench/machine_description.hpp"
#include "tools/bench/peak_flops.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/plan_text.hpp"
#include "tools/cli/train_flags.hpp"

namespace spillway::cli {
namespace {

struct PlanFlags {
  TrainFlags train;
  std::filesystem::path machine;  ///< a description, or empty: this machine
  bool no_commits = false;
  bool explain = false;
  bool check = false;
};

/// The rates of this machine, measured now.
plan::MachineProfile measured_profile(const PlanFlags& flags, const model::ModelConfig& config,
                                      const config::TrainOptions& options,
                                      const plan::Workload& workload, const plan::Budgets& budgets,
                                      const plan::Placement& placement) {
  engine::MachineTuning known(flags.train.profile);
  const engine::ModelRuntime model = engine::make_model_runtime(config, options, known.products());
  const bool on_disk = placement.uses_disk();
  const engine::CalibrationRequest request{
      .config = config,
      .options = options,
      .model = model,
      .workload = workload,
      .budgets = budgets,
      .state_directories = on_disk
                               ? std::optional(engine::state_directories(options, flags.train.run))
                               : std::nullopt};
  const engine::Tuning tuning = engine::tune(
      request, placement, known, [](const std::string& text) { tell("note: {}\n", text); });
  return engine::calibrate(request, tuning);
}

/// What the plan means on the described machine: its speed in units that machines are compared in.
nlohmann::ordered_json speed_on(const bench::MachineDescription& machine,
                                const model::ModelConfig& config,
                                const config::TrainOptions& options, const PlanView& view) {
  const plan::Workload& w = view.workload;
  const double tokens = static_cast<double>(w.tokens * w.micro_batches * w.rounds);
  const double flops = plan::flops_per_token(engine::decoder_shape(config, options.context));
  const double rate = tokens / view.prediction.step_seconds;
  nlohmann::ordered_json document{
      {"machine", machine.name},
      {"basis", machine.basis},
      {"tokens_per_second", rate},
      // FWD-BWD alone, nothing recomputed and nothing moved.
      {"resident_tokens_per_second",
       static_cast<double>(w.tokens) * view.profile.gpu_flops / plan::micro_batch_flops(w)},
      {"model_flops_per_token", flops},
      {"model_tflops", rate * flops * 1e-12}};
  if (const auto peak = bench::peak_flops(machine.gpu, options.compute)) {
    document["mfu"] = rate * flops / *peak;
  }
  return document;
}

/// Checks every list of operations that a run of the placement would use, by what the operations
/// declare that they read and write. Throws `Error{internal}` that names the first fault.
nlohmann::ordered_json check_lists(const plan::Workload& workload,
                                   const plan::Placement& placement) {
  std::size_t ops = 0;
  std::size_t dependencies = 0;
  const std::array lists{
      plan::build_training_step(workload, placement),
      plan::build_recorded_step(workload, placement), plan::build_flush(workload, placement),
      plan::build_evaluation(workload, placement), plan::build_snapshot(workload, placement)};
  for (const plan::StepPlan& list : lists) {
    for (const std::string& fault : {plan::find_race(list), plan::find_wrong_content(list)}) {
      check(fault.empty(), ErrorCode::internal, "the plan is wrong: " + fault);
    }
    ops += list.ops.size();
    dependencies += list.dependencies.size();
  }
  return {{"lists", lists.size()}, {"operations", ops}, {"dependencies", dependencies}};
}

void tell_assumption(const std::filesystem::path& file, const bench::MachineDescription& machine,
                     const config::TrainOptions& options) {
  if (!options.deterministic || !machine.assumes_slowdown) return;
  tell(
      "note: {} does not say how fast a deterministic backward pass of attention is "
      "(attention_backward_deterministic_tflops); it is taken to be {} times slower than the "
      "other\n",
      file.string(), bench::kDeterministicSlowdown);
}

/// Gives attention what the placement leaves of the device's memory.
void widen_attention(const model::ModelConfig& config, const config::TrainOptions& options,
                     const plan::Placement& placement, Bytes device, plan::Workload& workload) {
  const Bytes scores = engine::spare_score_gradients(config, options, workload, placement, device);
  if (scores == model::cuda::kScoreGradients) return;
  const engine::ModelRuntime sizes = engine::make_model_sizes(config, options, scores);
  workload = engine::make_workload(config, *sizes.transformer, options);
}

nlohmann::ordered_json run(const PlanFlags& flags, bool json) {
  config::TrainOptions options = flags.train.options();
  options.commits = !flags.no_commits;
  const auto config = flags.train.model_config();
  check(config.has_value(), ErrorCode::invalid_argument,
        "no model: give --model CONFIG_JSON or --from HF_DIR");
  std::optional<bench::MachineDescription> machine;
  if (!flags.machine.empty()) {
    machine = bench::load_machine(flags.machine);
    if (!options.device) options.device = config::DeviceKind::cuda;
    options.device_memory = options.device_memory.value_or(machine->capacity.device);
    options.host_memory = options.host_memory.value_or(machine->capacity.host);
    tell_assumption(flags.machine, *machine, options);
  }
  engine::resolve(options, *config);
  const auto budgets_for = [&](const config::TrainOptions& tried, const plan::Workload& step) {
    if (!machine) return engine::make_budgets(tried, flags.train.run, step);
    return plan::Budgets{
        .device = *tried.device_memory, .host = *tried.host_memory, .nvme = machine->capacity.nvme};
  };
  for (const std::string& line : engine::choose_automatic(options, *config, budgets_for)) {
    tell("note: {}\n", line);
  }
  plan::Workload workload = engine::make_workload(*config, options);
  const plan::Budgets budgets = budgets_for(options, workload);
  const plan::Placement fitting = engine::place(*config, options, workload, budgets);
  const plan::MachineProfile profile =
      machine ? bench::profile_for(*machine, *config, workload, options)
              : measured_profile(flags, *config, options, workload, budgets, fitting);
  const plan::PlacementRequest request = engine::placement_request(options);
  const plan::PlannedStep step =
      plan::fastest_placement(workload, budgets, request, profile, fitting);
  const plan::Placement& placement = step.placement;
  widen_attention(*config, options, placement, budgets.device, workload);
  const PlanView view{.workload = workload,
                      .placement = placement,
                      .budgets = budgets,
                      .profile = profile,
                      .prediction = step.prediction,
                      .memory = plan::memory_items(workload, placement),
                      .cuts = plan::report_cuts(workload, budgets, request, profile, step),
                      .device = options.device.value_or(config::DeviceKind::host)};
  nlohmann::ordered_json document = to_json(view);
  if (machine) document["speed"] = speed_on(*machine, *config, options, view);
  if (flags.check) document["check"] = check_lists(workload, placement);
  if (!json) {
    answer("{}", to_text(view));
    if (machine) answer("machine    {} ({})\n", machine->name, machine->basis);
    if (flags.check) {
      const nlohmann::ordered_json& found = document["check"];
      answer(
          "check      {} operations in {} lists with {} dependencies: no two race, and each "
          "finds what it reads\n",
          found["operations"].get<std::size_t>(), found["lists"].get<std::size_t>(),
          found["dependencies"].get<std::size_t>());
    }
    if (flags.explain) {
      answer("{}", plan::to_text(plan::build_training_step(workload, placement)));
    }
  }
  return document;
}

}  // namespace

void add_plan(Command app, Session& session) {
  auto flags = std::make_shared<PlanFlags>();
  Command command =
      add_command(app, session, "plan", "Says what fits where and how long a step will take",
                  [flags, &session] { return run(*flags, session.json); });
  flags->train.add_to(command);
  flags->train.run = ".";
  command.add_option("--run", flags->train.run,
                     "The run's state would lie on the disk of this directory");
  command
      .add_option(
          "--machine", flags->machine,
          "The plan is made for the machine that this JSON file describes; docs/machines has some")
      .existing_file();
  command.add_flag("--no-commits", flags->no_commits,
                   "The plan is for a run that never commits to disk, as those of `bench step`");
  command.add_flag("--explain", flags->explain, "The answer lists every operation of the step");
  command.add_flag("--check", flags->check,
                   "The operations of a run are checked: no two race for a buffer, and each finds "
                   "in its buffers what it needs");
}

}  // namespace spillway::cli
