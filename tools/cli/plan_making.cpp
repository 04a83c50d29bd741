#include "tools/cli/plan_making.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/engine/machine/budgets.hpp"
#include "runtime/engine/machine/calibrate.hpp"
#include "runtime/engine/prepare/automatic.hpp"
#include "runtime/engine/prepare/model_runtime.hpp"
#include "runtime/engine/prepare/score_gradients.hpp"
#include "runtime/engine/prepare/stage_cut.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/placement/fastest.hpp"
#include "runtime/plan/predict/flops.hpp"
#include "tools/bench/model_shapes.hpp"
#include "tools/bench/peak_flops.hpp"
#include "tools/cli/hub.hpp"

namespace spillway::cli {
namespace {

/// The rates of this machine, measured now.
plan::MachineProfile measured_profile(const PlanRequest& request,
                                      const config::TrainOptions& options,
                                      const plan::Workload& workload, const plan::Budgets& budgets,
                                      const plan::Placement& placement, const Note& note) {
  engine::MachineTuning known(request.profile);
  const engine::ModelRuntime model =
      engine::make_model_runtime(request.model, options, known.products());
  const bool on_disk = placement.uses_disk();
  const engine::CalibrationRequest calibration{
      .config = request.model,
      .options = options,
      .model = model,
      .workload = workload,
      .budgets = budgets,
      .state_directories =
          on_disk ? std::optional(engine::state_directories(options, request.run)) : std::nullopt};
  const engine::Tuning tuning = engine::tune(calibration, placement, known, note);
  return engine::calibrate(calibration, tuning, note);
}

/// What the plan means on the described machine: its speed in units that machines are compared in.
nlohmann::ordered_json speed_on(const bench::MachineDescription& machine,
                                const model::ModelConfig& config, const MadePlan& made) {
  const plan::Workload& w = made.workload;
  const double tokens = static_cast<double>(plan::tokens_of_step(w));
  const double flops = plan::flops_per_token(engine::decoder_shape(config, made.options.context));
  const double rate = tokens / made.prediction.step_seconds;
  const double of_rank = rate / (w.ranks.count * w.stage.count * w.tensor.count);
  nlohmann::ordered_json document{
      {"machine", machine.name},
      {"basis", machine.basis},
      {"tokens_per_second", rate},
      // FWD-BWD alone, nothing recomputed and nothing moved.
      {"resident_tokens_per_second", static_cast<double>(w.tokens * w.ranks.count) *
                                         made.profile.gpu_flops / plan::micro_batch_flops(w)},
      {"model_flops_per_token", flops},
      {"model_tflops", of_rank * flops * 1e-12}};  // of each GPU
  if (const auto peak = bench::peak_flops(machine.gpu, made.options.compute)) {
    document["mfu"] = of_rank * flops / *peak;
  }
  return document;
}

/// Fills what the options leave open from the description, which is loaded into `made`.
void describe_machine(const PlanRequest& request, MadePlan& made, const Note& note) {
  const std::filesystem::path& file = request.machine;
  made.machine = bench::load_machine(file);
  bench::share_among_ranks(*made.machine, request.nodes);
  config::TrainOptions& options = made.options;
  if (!options.device) options.device = config::DeviceKind::cuda;
  options.device_memory = options.device_memory.value_or(made.machine->capacity.device);
  options.host_memory = options.host_memory.value_or(made.machine->capacity.host);
  if (!options.deterministic || !made.machine->assumes_slowdown) return;
  note(fmt::format(
      "{} does not say how fast a deterministic backward pass of attention is "
      "(attention_backward_deterministic_tflops); it is taken to be {} times slower than the other",
      file.string(), bench::kDeterministicSlowdown));
}

/// Gives attention what the placement leaves of the device's memory.
void widen_attention(const model::ModelConfig& config, MadePlan& made) {
  const Bytes scores = engine::spare_score_gradients(config, made.options, made.workload,
                                                     made.placement, made.budgets.device);
  if (scores == model::cuda::kScoreGradients) return;
  const engine::ModelRuntime sizes = engine::make_model_sizes(config, made.options, scores);
  made.workload = engine::of_stage(
      engine::make_workload(config, *sizes.transformer, made.options, made.workload.ranks),
      made.options, made.workload.stage.index);
}

/// Places the work of a rank, whose workload, budgets and profile are known.
void place(const model::ModelConfig& config, const plan::Placement& fitting, MadePlan& made) {
  const plan::PlacementRequest placing = engine::placement_request(made.options);
  const plan::PlannedStep step =
      plan::fastest_placement(made.workload, made.budgets, placing, made.profile, fitting);
  made.placement = step.placement;
  made.prediction = step.prediction;
  made.prediction.step_seconds *= made.workload.stage.stretch;
  widen_attention(config, made);
  made.cuts = plan::report_cuts(made.workload, made.budgets, placing, made.profile, step);
}

/// Plans each stage of a pipeline, and returns the one whose step is the longest.
MadePlan plan_longest_stage(const model::ModelConfig& config, const plan::Workload& whole,
                            MadePlan made, const Note& note) {
  if (engine::balances_stages(made.options)) {
    made.options.pipeline.parts =
        engine::balance_stages(whole, made.options, made.budgets, &made.profile).layers;
  }
  MadePlan longest;
  for (std::uint32_t stage = 0; stage < made.options.pipeline.stages; ++stage) {
    MadePlan of_stage = made;
    of_stage.workload = engine::of_stage(whole, made.options, stage);
    place(config, engine::place(config, of_stage.options, of_stage.workload, of_stage.budgets),
          of_stage);
    note(fmt::format("stage {}; predicted {:.4g} s a step", stage_text(of_stage.workload.stage),
                     of_stage.prediction.step_seconds));
    const bool longer = of_stage.prediction.step_seconds > longest.prediction.step_seconds;
    if (stage == 0 || longer) longest = std::move(of_stage);
  }
  return longest;
}

}  // namespace

PlanView MadePlan::view() const {
  return {.workload = workload,
          .placement = placement,
          .budgets = budgets,
          .profile = profile,
          .prediction = prediction,
          .memory = plan::memory_items(workload, placement),
          .cuts = cuts,
          .device = options.device.value_or(config::DeviceKind::host)};
}

MadePlan make_plan(const PlanRequest& request, const Note& note) {
  const model::ModelConfig& config = request.model;
  MadePlan made;
  made.options = request.options;
  config::TrainOptions& options = made.options;
  check(request.nodes.ranks == 1 || !request.machine.empty(), ErrorCode::invalid_argument,
        fmt::format("--ranks {} needs --machine: this machine cannot tell how fast it would be "
                    "among others; docs/machines has descriptions",
                    request.nodes.ranks));
  if (!request.machine.empty()) describe_machine(request, made, note);
  engine::resolve(options, config);
  const auto budgets_for = [&](const config::TrainOptions& tried, const plan::Workload& step) {
    if (!made.machine) return engine::make_budgets(tried, request.run, step);
    return plan::Budgets{.device = *tried.device_memory,
                         .host = *tried.host_memory,
                         .nvme = made.machine->capacity.nvme};
  };
  for (const std::string& line : engine::choose_automatic(options, config, budgets_for)) note(line);
  const plan::Grid grid = engine::grid_of(options, request.nodes.ranks);
  const plan::Ranks ranks = engine::ranks_of(options, grid.replicas);
  made.workload = engine::make_workload(config, options, ranks);
  made.budgets = budgets_for(options, made.workload);
  if (grid.stages > 1) {  // of a machine that is described
    made.profile = bench::profile_for(*made.machine, config, made.workload, options);
    return plan_longest_stage(config, made.workload, made, note);
  }
  const plan::Placement fitting = engine::place(config, options, made.workload, made.budgets);
  made.profile =
      made.machine ? bench::profile_for(*made.machine, config, made.workload, options)
                   : measured_profile(request, options, made.workload, made.budgets, fitting, note);
  place(config, fitting, made);
  return made;
}

nlohmann::ordered_json to_json(const MadePlan& made, const model::ModelConfig& config) {
  nlohmann::ordered_json document = to_json(made.view());
  if (made.machine) document["speed"] = speed_on(*made.machine, config, made);
  return document;
}

std::filesystem::path default_profile() {
  const std::filesystem::path name = "spillway/machine.json";
  const auto directory = [](const char* variable) -> std::filesystem::path {
    const char* const value = std::getenv(variable);
    return value != nullptr ? value : "";
  };
  if (const auto cache = directory("XDG_CACHE_HOME"); !cache.empty()) return cache / name;
  if (const auto home = directory("HOME"); !home.empty()) return home / ".cache" / name;
  return {};
}

model::ModelConfig find_model(const std::filesystem::path& name) {
  const std::filesystem::path found = find_checkpoint(name);
  return bench::model_from(found == name ? name : found / "config.json");
}

}  // namespace spillway::cli
