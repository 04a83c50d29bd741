#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/launch_environment.hpp"
#include "runtime/base/error.hpp"
#include "runtime/config/options_table.hpp"
#include "runtime/engine/run/start_values.hpp"
#include "runtime/engine/train_loop.hpp"
#include "tools/cli/exporting.hpp"
#include "tools/cli/hub.hpp"
#include "tools/cli/picture/page.hpp"
#include "tools/cli/picture/plan_page.hpp"
#include "tools/cli/picture/run_report.hpp"
#include "tools/cli/plan_making.hpp"
#include "tools/cli/plan_text.hpp"
#include "tools/cli/report_text.hpp"
#include "tools/python/bindings/bindings.hpp"
#include "tools/python/bindings/interpreter.hpp"

namespace spillway::python {
namespace {

namespace nb = nanobind;

/// Keys of the configuration's section `spillway` with the texts of their values, as on a command
/// line.
using Settings = std::vector<std::pair<std::string, std::vector<std::string>>>;

/// What `plan` and `train` are asked for, as spillway/run.py prepares it.
struct Ask {
  std::string config;  ///< the configuration's text
  std::string origin;  ///< its name in errors
  Settings settings;
  std::string model;         ///< a name, a path or empty
  std::uint32_t layers = 0;  ///< instead of the model's; 0: the model's
  std::string checkpoint;    ///< a path, a hub's model or empty
  std::string data;
  std::string run;
  std::string machine;
  bool resume = false;

  [[nodiscard]] config::TrainOptions options(const cli::Note& note) const;
  [[nodiscard]] std::optional<std::filesystem::path> start() const;
  [[nodiscard]] std::optional<model::ModelConfig> architecture() const;
  [[nodiscard]] cli::PlanRequest plan_request(const cli::Note& note) const;
};

config::TrainOptions Ask::options(const cli::Note& note) const {
  config::ParsedConfig parsed = config::parse_train_config(config, origin);
  for (const std::string& line : parsed.notes) note(line);
  for (const auto& [key, texts] : settings) {
    const std::string path = "spillway." + key;
    check(config::find_option(path) != nullptr, ErrorCode::invalid_argument,
          fmt::format("{} is neither an argument nor a key of the configuration's section spillway;"
                      " docs/configuration.md lists those",
                      key));
    config::set_option(parsed.options, path, key, texts);
  }
  return parsed.options;
}

std::optional<std::filesystem::path> Ask::start() const {
  return checkpoint.empty() ? std::nullopt : std::optional(cli::find_checkpoint(checkpoint));
}

std::optional<model::ModelConfig> Ask::architecture() const {
  std::optional<model::ModelConfig> result;
  if (!model.empty()) result = cli::find_model(model);
  if (const auto directory = start()) result = engine::model_config_in(*directory);
  if (result && layers > 0) result->layers = layers;
  return result;
}

/// Returns what calls `note` with the interpreter's lock, whoever holds it.
cli::Note locking(const nb::callable& note) {
  return [&note](const std::string& text) {
    const nb::gil_scoped_acquire locked;
    note(text);
  };
}

/// Returns what is to be planned. The interpreter's lock is not held.
cli::PlanRequest Ask::plan_request(const cli::Note& note) const {
  const auto shape = architecture();
  check(shape.has_value(), ErrorCode::invalid_argument,
        "no model: give model= (an architecture) or checkpoint= (a directory of Hugging Face)");
  return {.options = options(note),
          .model = *shape,
          .run = run,
          .profile = cli::default_profile(),
          .machine = machine};
}

/// A plan, and what it was made for.
struct PlanAnswer {
  cli::PlanRequest request;
  cli::MadePlan made;
  std::string model;  ///< what the user calls it

  [[nodiscard]] nlohmann::ordered_json document() const {
    return cli::to_json(made, request.model);
  }
  [[nodiscard]] std::string page() const {
    const Unlocked unlocked;
    return cli::html_page(cli::plan_title(made, model), cli::plan_page(made, request, document()));
  }
};

PlanAnswer plan(const Ask& ask, const nb::callable& note) {
  const Unlocked unlocked;
  const cli::Note told = locking(note);
  cli::PlanRequest request = ask.plan_request(told);
  cli::MadePlan made = cli::make_plan(request, told);
  return {.request = std::move(request),
          .made = std::move(made),
          .model = ask.checkpoint.empty() ? ask.model : ask.checkpoint};
}

/// Returns the page of a run.
std::string report_page(const std::string& run) {
  const Unlocked unlocked;
  return cli::html_page(cli::run_report_title(run), cli::run_report(run));
}

/// Passes what happens to an object of Python. What that raises, and Ctrl-C, ends the run after the
/// step, with its state saved.
class Watcher final : public engine::TrainObserver {
 public:
  Watcher(nb::object watcher, std::filesystem::path run)
      : watcher_(std::move(watcher)), run_(std::move(run)) {}

  void planned(const engine::TrainPlan& plan) override {
    const cli::PlanView view{.plan = plan.plan};
    const std::string text =
        fmt::format("{}commits    every {} step(s)\n", cli::to_text(view), plan.plan.commit_every);
    call("planned", cli::to_json(view).dump(), text, plan.first_step, plan.steps);
    cli::keep_plan(run_, plan, [this](const std::string& note) { noted(note); });
  }

  void stepped(const engine::StepResult& result, const engine::StepUse&) override {
    call("stepped", result.step, result.loss, result.grad_norm, result.lr, result.tokens,
         result.seconds, result.skipped);
  }

  void evaluated(std::uint64_t step, const engine::Evaluation& evaluation) override {
    call("evaluated", step, evaluation.loss);
  }

  void saved(std::uint64_t step, const std::filesystem::path& checkpoint) override {
    call("saved", step, checkpoint.string());
  }

  void noted(const std::string& text) override { call("noted", text); }

  [[nodiscard]] const std::atomic<int>& interrupt() const { return interrupt_; }
  /// Returns the exception that ended the run, or None. The lock must be held.
  [[nodiscard]] nb::object raised() const {
    return failure_ ? nb::borrow(failure_->value()) : nb::none();
  }

 private:
  template <class... Arguments>
  void call(const char* name, const Arguments&... arguments) {
    const nb::gil_scoped_acquire locked;
    if (is_ending()) interrupt_ = 1;  // a run in a thread that nobody joins ends and is saved
    if (failure_ || is_ending()) return;
    try {
      watcher_.attr(name)(arguments...);
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    } catch (nb::python_error& error) {
      failure_.emplace(std::move(error));
      interrupt_ = 1;
    }
  }

  nb::object watcher_;
  std::filesystem::path run_;
  std::optional<nb::python_error> failure_;
  std::atomic<int> interrupt_{0};
};

/// Throws where a launcher has started several processes: each would train the run by itself.
void check_alone() {
  const auto launch =
      comm::read_launch_environment([](const char* name) { return std::getenv(name); });
  if (!launch || launch->ranks == 1) return;
  throw Error(
      ErrorCode::not_supported,
      fmt::format("{} say that there are {} ranks, and spillway.train would train in each of "
                  "them for itself; have the launcher start the program, \"spillway "
                  "train\", whose ranks train together, or start one process without a "
                  "launcher",
                  launch->variables, launch->ranks));
}

/// Returns the report as a document and as text, and what ended the run early, or None.
nb::tuple train(const Ask& ask, nb::object watcher) {
  Watcher face(std::move(watcher), ask.run);
  std::string document;
  std::string text;
  {
    const Unlocked unlocked;
    check_alone();
    engine::TrainRequest request;
    request.options = ask.options([&face](const std::string& line) { face.noted(line); });
    request.model = ask.architecture();
    request.data = ask.data;
    request.run = ask.run;
    request.from = ask.start();
    request.resume = ask.resume;
    request.profile = cli::default_profile();
    const engine::TrainReport report = engine::train(request, face, face.interrupt());
    document = cli::to_json(report).dump();
    text = cli::to_text(report);
  }
  return nb::make_tuple(document, text, face.raised());
}

/// Returns the step and the number of parameters that were exported, and the name of their type.
/// Ctrl-C leaves nothing of it.
nb::tuple export_run(const std::string& run, const std::string& out, const std::string& dtype,
                     const std::string& max_shard, bool replace) {
  std::optional<nb::python_error> interrupted;
  cli::Exported exported;
  try {
    const Unlocked unlocked;
    cli::ExportRequest request{.run = run, .out = out, .max_shard = parse_bytes(max_shard)};
    if (!dtype.empty()) request.dtype = parse_dtype(dtype);
    if (replace) request.if_exists = model::IfExists::replace;
    exported = cli::export_run(request, [&interrupted] {
      const nb::gil_scoped_acquire locked;
      if (PyErr_CheckSignals() != 0) interrupted.emplace();
      return interrupted.has_value() || is_ending();
    });
  } catch (const cli::ExportStopped&) {
    if (interrupted) throw std::move(*interrupted);
    throw Error(ErrorCode::not_supported, "the interpreter ends; nothing was exported");
  }
  return nb::make_tuple(exported.step, exported.parameters, std::string(name_of(exported.dtype)));
}

}  // namespace

void add_native_run(nb::module_& module) {
  nb::class_<Ask>(module, "Ask", "What plan and train are asked for.")
      .def(nb::init<>())
      .def_rw("config", &Ask::config)
      .def_rw("origin", &Ask::origin)
      .def_rw("settings", &Ask::settings)
      .def_rw("model", &Ask::model)
      .def_rw("layers", &Ask::layers)
      .def_rw("checkpoint", &Ask::checkpoint)
      .def_rw("data", &Ask::data)
      .def_rw("run", &Ask::run)
      .def_rw("machine", &Ask::machine)
      .def_rw("resume", &Ask::resume);
  nb::class_<PlanAnswer>(module, "PlanAnswer", "A plan.")
      .def_prop_ro(
          "document", [](const PlanAnswer& self) { return self.document().dump(); },
          "The plan as JSON.")
      .def_prop_ro(
          "text", [](const PlanAnswer& self) { return cli::to_text(self.made.view()); },
          "The plan as a table.")
      .def("page", &PlanAnswer::page, "Returns the plan as an HTML page that needs no other file.");
  module.def("plan", &plan, nb::arg("ask"), nb::arg("note"),
             nb::sig("def plan(ask: Ask, note: collections.abc.Callable[[str], object]) -> "
                     "PlanAnswer"),
             "Returns the plan; note is called with lines for the user.");
  module.def("report_page", &report_page, nb::arg("run"),
             nb::sig("def report_page(run: str) -> str"),
             "Returns what a run was planned to be and was, as an HTML page that needs no other "
             "file.");
  module.def("train", &train, nb::arg("ask"), nb::arg("watcher"),
             nb::sig("def train(ask: Ask, watcher: object) -> "
                     "tuple[str, str, BaseException | None]"),
             "Returns the report as JSON and as text, and the exception that ended it or None.");
  module.def("export", &export_run, nb::arg("run"), nb::arg("out"), nb::arg("dtype"),
             nb::arg("max_shard"), nb::arg("replace"),
             nb::sig("def export(run: str, out: str, dtype: str, max_shard: str, replace: bool) -> "
                     "tuple[int, int, str]"),
             "Returns the step, the number of parameters and their type that were exported.");
}

}  // namespace spillway::python
