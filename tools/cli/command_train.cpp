#include <fmt/format.h>

#include <memory>

#include "runtime/base/error.hpp"
#include "runtime/engine/train_loop.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/interrupts.hpp"
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

class Face final : public engine::TrainObserver {
 public:
  Face(bool json, Interrupts& interrupts) : json_(json), interrupts_(interrupts) {}

  void planned(const engine::TrainPlan& plan) override {
    const PlanView view{.workload = plan.workload,
                        .placement = plan.placement,
                        .budgets = plan.budgets,
                        .profile = plan.profile,
                        .prediction = plan.prediction,
                        .memory = plan.memory,
                        .device = plan.device};
    document_ = to_json(view);
    const std::string text =
        fmt::format("{}commits    every {} step(s)\n", to_text(view), plan.commit_every);
    json_ ? tell_text(text) : answer_text(text);
    flush_answers();
    if (plan.first_step > 1) live_.note(fmt::format("resumed after step {}", plan.first_step - 1));
    live_.start(plan);
    steps_ = plan.steps;
    next_step(plan.first_step);
  }

  void stepped(const engine::StepResult& result, const engine::StepUse& use) override {
    live_.step(result, use);
    next_step(result.step + 1);
  }

  void evaluated(std::uint64_t step, const engine::Evaluation& evaluation) override {
    live_.note(fmt::format("step {}: validation loss {:.4f} over {} tokens", step, evaluation.loss,
                           evaluation.tokens));
  }

  void saved(std::uint64_t step, const std::filesystem::path& checkpoint) override {
    live_.note(fmt::format("step {}: kept in {}", step, checkpoint.string()));
  }

  void noted(const std::string& text) override { live_.note(text); }

  void finish() { live_.finish(); }
  [[nodiscard]] const ordered_json& plan() const { return document_; }

 private:
  void next_step(std::uint64_t step) {
    step <= steps_ ? interrupts_.in_step(step) : interrupts_.saving();
  }

  bool json_;
  Interrupts& interrupts_;
  std::uint64_t steps_ = 0;
  LiveLine live_;
  ordered_json document_;
};

ordered_json to_json(const engine::TrainReport& report, const ordered_json& plan) {
  ordered_json document{{"steps", report.steps},
                        {"last_step", report.last_step},
                        {"loss", report.last_loss ? ordered_json(*report.last_loss) : nullptr},
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
  const char* const interrupted = report.interrupted ? " (interrupted, saved)" : "";
  if (report.steps == 0) {
    answer("trained    no step: the run is at step {}{}\n", report.last_step,
           report.interrupted ? interrupted : ", its last; --steps N goes on to step N");
    return;
  }
  answer("trained    {} step(s) to step {}{}, loss {:.4f}{}\n", report.steps, report.last_step,
         interrupted, report.last_loss.value_or(0),
         report.val_loss ? fmt::format(", validation loss {:.4f}", *report.val_loss) : "");
  answer("step time  predicted {:.4f} s, measured {:.4f} s ({:+.1f} %), {}\n",
         report.predicted_step_seconds, report.measured_step_seconds,
         100 * (report.measured_step_seconds / report.predicted_step_seconds - 1),
         shown_rate(report.tokens_per_second));
  answer("memory     device {} of {}, host {}; disk read {}, written {}\n",
         format_bytes(report.device_high_water), format_bytes(report.device_capacity),
         format_bytes(report.host_high_water), format_bytes(report.state_read),
         format_bytes(report.state_written));
  if (report.skipped > 0) {
    answer("skipped    {} step(s) with non-finite gradients\n", report.skipped);
  }
}

ordered_json run(const TrainCommandFlags& flags, bool json) {
  engine::TrainRequest request;
  request.options = flags.train.options();
  request.model = flags.train.model_config();
  request.data = flags.data;
  request.run = flags.train.run;
  request.from = flags.train.checkpoint();
  if (request.from && *request.from != flags.train.from) {
    tell("note: {} is {}\n", flags.train.from.string(), request.from->string());
  }
  request.resume = flags.resume;
  request.profile = flags.train.profile;
  Interrupts interrupts;
  Face face(json, interrupts);
  const engine::TrainReport report = engine::train(request, face, interrupts.count());
  face.finish();
  if (!json) print(report);
  return to_json(report, face.plan());
}

}  // namespace

void add_train(Command app, Session& session) {
  auto flags = std::make_shared<TrainCommandFlags>();
  Command command = add_command(app, session, "train", "Trains a model",
                                [flags, &session] { return run(*flags, session.json); });
  flags->train.add_to(command);
  command.add_option("--data", flags->data, "This directory has train.bin, val.bin and meta.json")
      .required();
  command
      .add_option("--run", flags->train.run,
                  "The run keeps its state, metrics and configuration in this directory")
      .required();
  command.add_flag("--resume", flags->resume, "The run continues from its last committed step");
}

}  // namespace spillway::cli
