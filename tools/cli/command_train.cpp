#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <memory>

#include "runtime/base/error.hpp"
#include "runtime/engine/train_loop.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/live_line.hpp"
#include "tools/cli/plan_text.hpp"
#include "tools/cli/train_flags.hpp"

namespace spillway::cli {
namespace {

using nlohmann::ordered_json;

struct TrainCommandFlags {
  TrainFlags train;
  std::filesystem::path data;
  bool resume = false;
};

// A signal handler can reach nothing else.
std::atomic<int> interrupts{0};

/// The first SIGINT or SIGTERM ends the run after the step; the second ends the process.
void on_signal(int signal) {
  if (interrupts.fetch_add(1) > 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

class Face final : public engine::TrainObserver {
 public:
  explicit Face(bool json) : json_(json) {}

  void planned(const engine::TrainPlan& plan) override {
    const PlanView view{.workload = plan.workload,
                        .placement = plan.placement,
                        .budgets = plan.budgets,
                        .profile = plan.profile,
                        .prediction = plan.prediction,
                        .memory = plan.memory};
    document_ = to_json(view);
    fmt::print(json_ ? stderr : stdout, "{}commits    every {} step(s)\n", to_text(view),
               plan.commit_every);
    if (plan.first_step > 1) live_.note(fmt::format("resumed after step {}", plan.first_step - 1));
    std::fflush(stdout);
    live_.start(plan.first_step, plan.steps);
  }

  void stepped(const engine::StepResult& result, const engine::Exposed& exposed,
               const engine::Trainer& trainer) override {
    live_.step(result, exposed, trainer);
  }

  void evaluated(std::uint64_t step, const engine::Evaluation& evaluation) override {
    live_.note(fmt::format("step {}: validation loss {:.4f} over {} tokens", step, evaluation.loss,
                           evaluation.tokens));
  }

  void saved(std::uint64_t step, const std::filesystem::path& checkpoint) override {
    live_.note(fmt::format("step {}: kept in {}", step, checkpoint.string()));
  }

  void noted(const std::string& text) override { live_.note(text); }

  [[nodiscard]] const ordered_json& plan() const { return document_; }

 private:
  bool json_;
  LiveLine live_;
  ordered_json document_;
};

ordered_json to_json(const engine::TrainReport& report, const ordered_json& plan) {
  ordered_json document{{"steps", report.steps},
                        {"last_step", report.last_step},
                        {"loss", report.last_loss},
                        {"tokens_per_second", report.tokens_per_second},
                        {"predicted_step_seconds", report.predicted_step_seconds},
                        {"measured_step_seconds", report.measured_step_seconds},
                        {"skipped_steps", report.skipped},
                        {"interrupted", report.interrupted},
                        {"device_high_water", report.device_high_water.value()},
                        {"device_budget", report.device_capacity.value()},
                        {"host_high_water", report.host_high_water.value()},
                        {"state_bytes_read", report.state_read.value()},
                        {"state_bytes_written", report.state_written.value()}};
  if (report.val_loss) document["val_loss"] = *report.val_loss;
  document["plan"] = plan;
  return document;
}

void print(const engine::TrainReport& report) {
  fmt::print(
      "trained    {} step(s) to step {}{}, loss {:.4f}{}\n", report.steps, report.last_step,
      report.interrupted ? " (interrupted, saved)" : "", report.last_loss,
      report.val_loss ? fmt::format(", validation loss {:.4f}", *report.val_loss) : std::string());
  fmt::print("step time  predicted {:.4f} s, measured {:.4f} s ({:+.1f} %), {:.0f} tokens/s\n",
             report.predicted_step_seconds, report.measured_step_seconds,
             report.measured_step_seconds > 0
                 ? 100 * (report.measured_step_seconds / report.predicted_step_seconds - 1)
                 : 0.0,
             report.tokens_per_second);
  fmt::print("memory     device {} of {}, host {}; disk read {}, written {}\n",
             format_bytes(report.device_high_water), format_bytes(report.device_capacity),
             format_bytes(report.host_high_water), format_bytes(report.state_read),
             format_bytes(report.state_written));
  if (report.skipped > 0)
    fmt::print("skipped    {} step(s) with non-finite gradients\n", report.skipped);
}

ordered_json run(const TrainCommandFlags& flags, bool json) {
  engine::TrainRequest request;
  request.options = flags.train.options();
  request.model = flags.train.model_config();
  request.data = flags.data;
  request.run = flags.train.run;
  if (!flags.train.from.empty()) request.from = flags.train.from;
  request.resume = flags.resume;
  request.profile = flags.train.profile;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  Face face(json);
  const engine::TrainReport report = engine::train(request, face, interrupts);
  if (!json) print(report);
  return to_json(report, face.plan());
}

}  // namespace

void add_train(CLI::App& app, Session& session) {
  auto flags = std::make_shared<TrainCommandFlags>();
  CLI::App* command = add_command(app, session, "train", "Trains a model",
                                  [flags, &session] { return run(*flags, session.json); });
  flags->train.add_to(*command);
  command->add_option("--data", flags->data, "Directory with train.bin, val.bin and meta.json")
      ->required();
  command->add_option("--run", flags->train.run, "Run directory: state, metrics, configuration")
      ->required();
  command->add_flag("--resume", flags->resume, "Continue the run from its last committed step");
}

}  // namespace spillway::cli
