#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/plan/step/check.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tools/bench/named_machines.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/grid_plan.hpp"
#include "tools/cli/machine_table.hpp"
#include "tools/cli/page_flag.hpp"
#include "tools/cli/picture/plan_page.hpp"
#include "tools/cli/plan_making.hpp"
#include "tools/cli/plan_summary.hpp"
#include "tools/cli/step_text.hpp"
#include "tools/cli/train_flags.hpp"

namespace spillway::cli {
namespace {

struct PlanFlags {
  TrainFlags train;
  std::filesystem::path machine;  ///< a name or a description, or empty: this machine
  bool lists_machines = false;
  bench::Nodes nodes;
  bool ranks_grids = false;
  std::uint32_t windows = 0;
  bool tensor_across = false;
  bool no_commits = false;
  bool explain = false;
  bool check = false;
  PageFlag page;
};

/// Checks every list of operations that a run of the placement would use, by what the operations
/// declare that they read and write. Throws `Error{internal}` that names the first fault.
nlohmann::ordered_json check_lists(const plan::Workload& workload,
                                   const plan::Placement& placement) {
  std::size_t ops = 0;
  std::size_t dependencies = 0;
  std::vector lists{
      plan::build_training_step(workload, placement),
      plan::build_recorded_step(workload, placement), plan::build_flush(workload, placement),
      plan::build_evaluation(workload, placement), plan::build_snapshot(workload, placement)};
  const plan::StaleStage& stale = workload.stale;
  if (stale.stays_full()) {
    lists.push_back(plan::build_fill(workload, placement));
    std::vector in_a_row{lists.back()};
    const std::uint32_t steps = std::max(workload.stage.in_flight, stale.phases) + 1;
    for (std::uint32_t step = 0; step < steps; ++step) {
      const plan::WhichList which{.phase = step % stale.phases};
      in_a_row.push_back(plan::build_training_step(workload, placement, which));
      if (step == 0 || step >= stale.phases) continue;  // the first ones are there already
      lists.push_back(in_a_row.back());
      lists.push_back(plan::build_recorded_step(workload, placement, which));
      lists.push_back(plan::build_flush(workload, placement, which));
      lists.push_back(plan::build_fill(workload, placement, which));
    }
    const std::string fault = plan::find_lost_round(in_a_row, workload.rounds);
    check(fault.empty(), ErrorCode::internal, "the plan is wrong: " + fault);
  }
  for (const plan::StepPlan& list : lists) {
    for (const std::string& fault : {plan::find_race(list), plan::find_wrong_content(list)}) {
      check(fault.empty(), ErrorCode::internal, "the plan is wrong: " + fault);
    }
    ops += list.ops.size();
    dependencies += list.dependencies.size();
  }
  return {{"lists", lists.size()}, {"operations", ops}, {"dependencies", dependencies}};
}

using OptionsOf = std::function<config::TrainOptions(const model::ModelConfig&)>;

/// Returns what gives a model its options: the configuration, which is read once, or the usual ones
/// where none is given, with the flags applied. Adds what is to be noted of it.
OptionsOf options_of(const PlanFlags& flags, std::vector<std::string>& notes) {
  std::optional<config::TrainOptions> given;
  if (!flags.train.config.empty()) {
    config::ParsedConfig parsed = flags.train.parsed();
    given = parsed.options;
    notes = std::move(parsed.notes);
  }
  return [&flags, given](const model::ModelConfig& config) {
    config::TrainOptions options = given ? *given : usual_options(config);
    if (!given) flags.train.set.apply(options);
    options.commits = !flags.no_commits;
    return options;
  };
}

/// Returns what the user calls the model.
const std::filesystem::path& model_name(const PlanFlags& flags) {
  return flags.train.from.empty() ? flags.train.model : flags.train.from;
}

/// Answers for every named machine: the given model, or else the largest that fits.
nlohmann::ordered_json run_table(const PlanFlags& flags, const Session& session) {
  std::vector<std::string> notes;
  TableRequest request{.machines = bench::built_machine_names(),
                       .models = models_by_size(),
                       .options = options_of(flags, notes)};
  if (const auto config = flags.train.model_config()) {
    request.models = {{.name = model_name(flags).string(), .config = *config}};
  }
  const std::vector<TableRow> rows = make_table(request);
  for (const std::string& note : note_lines(notes, session.verbose)) tell_note(note);
  if (!session.json) answer("{}", to_text(rows));
  return to_json(rows);
}

/// Answers with what the flags ask for of a plan.
void answer_plan(const PlanFlags& flags, const MadePlan& made, const Session& session,
                 const nlohmann::ordered_json& document) {
  PlanView view = made.view();
  if (!session.verbose) view.memory = more_memory(made.plan);
  std::string text = session.verbose ? to_text(view) : to_summary(view);
  if (made.machine) {
    text += fmt::format("machine    {} ({})\n", made.machine->name, made.machine->basis);
  }
  if (flags.check) {
    const nlohmann::ordered_json& found = document["check"];
    text += fmt::format(
        "check      {} operations in {} lists with {} dependencies: no two race, and each "
        "finds what it reads\n",
        found["operations"].get<std::size_t>(), found["lists"].get<std::size_t>(),
        found["dependencies"].get<std::size_t>());
  }
  if (flags.explain) {
    const plan::StepPlan step = plan::build_training_step(made.plan.workload, made.plan.placement,
                                                          {.place = made.plan.place});
    text += text_by_block(step, made.plan.workload);
  }
  answer_text(shown_on(STDOUT_FILENO, text));
}

nlohmann::ordered_json run(const PlanFlags& flags, const Session& session) {
  const bool json = session.json;
  if (flags.lists_machines) return run_table(flags, session);
  std::vector<std::string> notes;
  const OptionsOf options = options_of(flags, notes);  // reads the first of the files
  const auto config = flags.train.model_config();
  check(config.has_value(), ErrorCode::invalid_argument,
        "no model: give --model CONFIG_JSON or --from HF_DIR");
  const PlanRequest request{.options = options(*config),
                            .model = *config,
                            .run = flags.train.run,
                            .profile = flags.train.profile,
                            .machine = flags.machine,
                            .nodes = flags.nodes};
  const Note note = [](const std::string& text) { tell_note(text); };
  const auto tell_notes = [&] {  // an error is told without them
    for (const std::string& line : note_lines(notes, session.verbose)) tell_note(line);
  };
  if (flags.ranks_grids) {
    const MadeGrids made = make_grids(
        {.plan = request, .windows = flags.windows, .across = flags.tensor_across}, note);
    tell_notes();
    if (!json) answer("{}", to_text(made));
    return to_json(made);
  }
  const MadePlan made = make_plan(request, note);
  tell_notes();
  nlohmann::ordered_json document = to_json(made, *config);
  if (flags.check) document["check"] = check_lists(made.plan.workload, made.plan.placement);
  if (!json) answer_plan(flags, made, session, document);
  if (flags.page.wanted()) {
    flags.page.write(plan_title(made, model_name(flags)), plan_page(made, request, document));
  }
  return document;
}

}  // namespace

void add_plan(Command app, Session& session) {
  auto flags = std::make_shared<PlanFlags>();
  Command command =
      add_command(app, session, "plan", "Says what fits where and how long a step will take",
                  [flags, &session] { return run(*flags, session); });
  flags->train.add_to(command);
  flags->train.run = ".";
  command.add_option("--run", flags->train.run,
                     "The run's state would lie on the disk of this directory");
  command.option("config").optional().description(
      "This file is the configuration: DeepSpeed's JSON with a section `spillway`. Without one, a "
      "step has 65,536 tokens in windows of 4,096, AdamW, bf16 and a clipped gradient");
  const Argument machine = command.add_option(
      "--machine", flags->machine,
      "The plan is made for this machine: a name of --machines, or a JSON file that describes it");
  const Argument machines = command.add_flag(
      "--machines", flags->lists_machines,
      "The answer is a table of the named machines: the largest named model that each trains, or "
      "--model, how fast, and what bounds it");
  const Argument ranks =
      command
          .add_option(
              "--ranks", flags->nodes.ranks,
              "The plan is for one of so many ranks, each with a GPU and with micro-batches "
              "of its own; zero_optimization.stage says what they share")
          .positive()
          .capture_default();
  const Argument nodes =
      command.add_option("--nodes", flags->nodes.nodes, "The ranks are on so many machines")
          .positive()
          .capture_default();
  const Argument ranks_grids = command.add_flag(
      "--auto", flags->ranks_grids,
      "The answer ranks the grids of data, tensor and pipeline parallel ranks, by closed formulas");
  command
      .add_option("--windows", flags->windows,
                  "With --auto, a step has so many windows of all ranks together; else as many as "
                  "if every rank had its own")
      .positive()
      .needs(ranks_grids);
  command
      .add_flag("--tensor-across", flags->tensor_across,
                "With --auto, ranks of several machines may share the matrices of a layer")
      .needs(ranks_grids);
  command.add_flag("--no-commits", flags->no_commits,
                   "The plan is for a run that never commits to disk, as those of `bench step`");
  const Argument explain =
      command
          .add_flag("--explain", flags->explain,
                    "The answer lists every operation of the step, block by block: its number in "
                    "the step, its lane, what it reads and writes, and the operations that it "
                    "comes after")
          .excludes(ranks_grids);
  const Argument page = flags->page.add_to(command).excludes(ranks_grids);
  const Argument checks =
      command
          .add_flag(
              "--check", flags->check,
              "The operations of a run are checked: no two race for a buffer, and each finds in "
              "its buffers what it needs")
          .excludes(ranks_grids);
  for (const Argument& of_one : {machine, ranks, nodes, ranks_grids, explain, page, checks}) {
    machines.excludes(of_one);
  }
}

}  // namespace spillway::cli
