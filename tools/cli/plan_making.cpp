#include "tools/cli/plan_making.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/machine/own_machine.hpp"
#include "runtime/engine/prepare/automatic.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/planner.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/predict/flops.hpp"
#include "runtime/plan/search/choose.hpp"
#include "runtime/plan/search/fastest.hpp"
#include "tools/bench/model_shapes.hpp"
#include "tools/bench/named_machines.hpp"
#include "tools/bench/peak_flops.hpp"
#include "tools/cli/hub.hpp"

namespace spillway::cli {
namespace {

/// A machine that a file describes. Options say what may be filled of its memory.
class DescribedMachine final : public engine::PlanningMachine {
 public:
  DescribedMachine(const bench::MachineDescription& machine, const model::ModelConfig& config)
      : machine_(machine), config_(config) {}

  [[nodiscard]] plan::Budgets budgets(const config::TrainOptions& options,
                                      const plan::Workload& /*workload*/) override {
    return {.device = *options.device_memory,
            .host = *options.host_memory,
            .nvme = machine_.capacity.nvme};
  }
  [[nodiscard]] plan::MachineProfile profile(const config::TrainOptions& options,
                                             const plan::Workload& whole,
                                             const plan::Budgets& /*budgets*/,
                                             const plan::Placement& /*fitting*/) override {
    return bench::profile_for(machine_, config_, whole, options);
  }

 private:
  const bench::MachineDescription& machine_;
  const model::ModelConfig& config_;
};

/// What the plan means on the described machine: its speed in units that machines are compared in.
nlohmann::ordered_json speed_on(const bench::MachineDescription& machine,
                                const model::ModelConfig& config, const MadePlan& made) {
  const plan::Workload& w = made.plan.workload;
  const double tokens = static_cast<double>(plan::tokens_of_step(w));
  const double flops =
      plan::flops_per_token(engine::decoder_shape(config, made.plan.options.context));
  const double rate = tokens / made.plan.prediction.step_seconds;
  const double of_rank = rate / w.grid().ranks();
  nlohmann::ordered_json document{
      {"machine", machine.name},
      {"basis", machine.basis},
      {"tokens_per_second", rate},
      // FWD-BWD alone, nothing recomputed and nothing moved.
      {"resident_tokens_per_second", static_cast<double>(w.tokens * w.replicas.count) *
                                         made.plan.profile.gpu_flops / plan::micro_batch_flops(w)},
      {"model_flops_per_token", flops},
      {"model_tflops", of_rank * flops * 1e-12}};  // of each GPU
  if (const auto peak = bench::peak_flops(machine.gpu, made.plan.options.compute)) {
    document["mfu"] = of_rank * flops / *peak;
  }
  return document;
}

/// Loads the description, and fills what the options leave open from it.
bench::MachineDescription describe_machine(const PlanRequest& request,
                                           config::TrainOptions& options, const Note& note) {
  bench::MachineDescription machine = bench::machine_from(request.machine);
  bench::share_among_ranks(machine, request.nodes);
  if (!options.device) options.device = config::DeviceKind::cuda;
  options.device_generation = machine.generation;
  options.device_memory = options.device_memory.value_or(machine.capacity.device);
  options.host_memory = options.host_memory.value_or(machine.capacity.host);
  if (options.deterministic && machine.assumes_slowdown) {
    note(fmt::format(
        "{} does not say how fast a deterministic backward pass of attention is "
        "(attention_backward_deterministic_tflops); it is taken to be {} times slower than the "
        "other",
        request.machine.string(), bench::kDeterministicSlowdown));
  }
  return machine;
}

/// Plans the first rank of a stage. `options` are resolved.
engine::Planned plan_stage(const PlanRequest& request, const config::TrainOptions& options,
                           const plan::Grid& grid, std::uint32_t stage,
                           engine::PlanningMachine& machine, const Note& note) {
  engine::RankGroups on_paper(plan::GridPlace{.grid = grid, .rank = grid.rank_of(stage, 0)});
  return engine::plan_rank(request.model, options, engine::replicas_of(options, grid.replicas),
                           engine::StageLayers::chosen, machine, on_paper, note);
}

/// Plans each stage of a pipeline, and returns the one that waits least for the others: its step is
/// that of the job, as in a run.
engine::Planned plan_busiest_stage(const PlanRequest& request, config::TrainOptions options,
                                   const plan::Grid& grid, engine::PlanningMachine& machine,
                                   const Note& note) {
  engine::Planned busiest;
  for (std::uint32_t stage = 0; stage < grid.stages; ++stage) {
    engine::Planned of_stage = plan_stage(request, options, grid, stage, machine, note);
    options = of_stage.options;  // the other stages have this cut
    note(fmt::format("stage {}; predicted {:.4g} s a step", stage_text(of_stage),
                     of_stage.prediction.step_seconds));
    const bool busier =
        plan::speaks_for_job(of_stage.workload.stage.stretch, busiest.workload.stage.stretch);
    if (stage == 0 || busier) busiest = std::move(of_stage);
  }
  return busiest;
}

}  // namespace

config::TrainOptions usual_options(const model::ModelConfig& config) {
  constexpr std::uint32_t kContext = 4096;
  config::TrainOptions options = config::parse_train_config(R"({
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": 1.0,
        "bf16": {"enabled": true},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        "spillway": {"tokens_per_step": 65536, "rounds": 1}})",
                                                            "the usual configuration")
                                     .options;
  options.context = std::min(kContext, config.max_context);
  return options;
}

PlanView MadePlan::view() const { return {.plan = plan, .cuts = cuts, .faster = faster}; }

MadePlan make_plan(const PlanRequest& request, const Note& note) {
  const model::ModelConfig& config = request.model;
  MadePlan made;
  config::TrainOptions options = request.options;
  check(request.nodes.ranks == 1 || !request.machine.empty(), ErrorCode::invalid_argument,
        fmt::format("--ranks {} needs --machine: this machine cannot tell how fast it would be "
                    "among others; spillway plan --machines lists some",
                    request.nodes.ranks));
  if (!request.machine.empty()) {
    made.machine = describe_machine(request, options, note);
  } else if (!options.device) {
    if (const auto without_gpu = engine::check_device(options)) note(*without_gpu);
  }
  engine::resolve(options, config);
  engine::RankGroups alone;
  const engine::MachineShare whole_machine;
  engine::MachineTuning known(made.machine ? std::filesystem::path() : request.profile);
  engine::ShownMachine own({.config = config,
                            .part = {.run = request.run, .share = whole_machine},
                            .ranks = alone,
                            .known = known,
                            .note = note,
                            .note_load = note});
  std::optional<DescribedMachine> described;
  if (made.machine) described.emplace(*made.machine, config);
  engine::PlanningMachine& machine =
      described ? static_cast<engine::PlanningMachine&>(*described) : own;
  const auto budgets = [&](const config::TrainOptions& tried, const plan::Workload& step) {
    return machine.budgets(tried, step);
  };
  const plan::Grid grid = engine::grid_of(options, request.nodes.ranks);
  const plan::Replicas replicas = engine::replicas_of(options, grid.replicas);
  for (const std::string& line : engine::choose_automatic(options, config, replicas, budgets)) {
    note(line);
  }
  made.plan = grid.stages > 1 ? plan_busiest_stage(request, options, grid, machine, note)
                              : plan_stage(request, options, grid, 0, machine, note);
  if (!request.compares) return made;
  made.cuts = plan::report_cuts(
      made.plan.workload, made.plan.budgets, engine::placement_request(made.plan.options),
      made.plan.profile, {.placement = made.plan.placement, .prediction = made.plan.prediction});
  if (!made.plan.shape) made.faster = faster_rounds(made.plan, config);
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
