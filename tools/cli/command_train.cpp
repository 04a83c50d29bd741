#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/engine/run/directory.hpp"
#include "runtime/engine/train_loop.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/interrupts.hpp"
#include "tools/cli/launch.hpp"
#include "tools/cli/live_line.hpp"
#include "tools/cli/picture/run_report.hpp"
#include "tools/cli/plan_summary.hpp"
#include "tools/cli/report_text.hpp"
#include "tools/cli/train_flags.hpp"

namespace spillway::cli {
namespace {

using nlohmann::ordered_json;

struct TrainCommandFlags {
  TrainFlags train;
  std::filesystem::path data;
  bool resume = false;
  bool trust_network = false;
};

class Face final : public engine::TrainObserver {
 public:
  /// `notes`: of the configuration, which are told once nothing can be wrong with it.
  Face(const Session& session, Interrupts& interrupts, std::filesystem::path run,
       const std::vector<std::string>& notes)
      : session_(session),
        interrupts_(interrupts),
        run_(std::move(run)),
        notes_(note_lines(notes, session.verbose)) {}

  void planned(const engine::TrainPlan& plan) override {
    const PlanView view{.plan = plan.plan, .shares = plan.shares};
    document_ = to_json(view);
    for (const std::string& note : notes_) tell_note(note);
    const std::string text =
        fmt::format("{}commits    every {} step(s)\n",
                    session_.verbose ? to_text(view) : to_summary(view), plan.plan.commit_every);
    session_.json ? tell_text(shown_on(STDERR_FILENO, text))
                  : answer_text(shown_on(STDOUT_FILENO, text));
    flush_answers();
    keep_plan(run_, plan, [this](const std::string& note) { live_.note(note); });
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

  const Session& session_;
  Interrupts& interrupts_;
  std::filesystem::path run_;
  std::vector<std::string> notes_;
  std::uint64_t steps_ = 0;
  LiveLine live_;
  ordered_json document_;
};

/// Observer of a rank other than the first: its notes go to a file of its run directory, or to
/// stderr if that directory is not kept.
class Silent final : public engine::TrainObserver {
 public:
  explicit Silent(const engine::RunDirectory& run) : path_(run.notes()) {}
  ~Silent() override { tell_text(early_); }
  Silent(const Silent&) = delete;
  Silent& operator=(const Silent&) = delete;

  void planned(const engine::TrainPlan&) override {
    planned_ = true;
    write(std::exchange(early_, {}));
  }
  void stepped(const engine::StepResult&, const engine::StepUse&) override {}
  void evaluated(std::uint64_t, const engine::Evaluation&) override {}
  void saved(std::uint64_t, const std::filesystem::path&) override {}
  void noted(const std::string& text) override {
    planned_ ? write(text + '\n') : static_cast<void>(early_ += text + '\n');
  }

 private:
  void write(const std::string& text) const {
    if (text.empty()) return;
    std::ofstream file(path_, std::ios::app);
    file << text << std::flush;
    if (!file) tell_text(text);
  }

  std::filesystem::path path_;
  bool planned_ = false;
  std::string early_;  // what was noted before the run was there
};

/// A run as its flags ask for it, and the notes of its configuration.
struct AskedRun {
  engine::TrainRequest request;
  std::vector<std::string> notes;
};

AskedRun asked_run(const TrainCommandFlags& flags, std::uint32_t ranks = 1) {
  config::ParsedConfig parsed = flags.train.parsed(ranks);
  engine::TrainRequest request;
  request.options = parsed.options;
  request.model = flags.train.model_config();
  request.data = flags.data;
  request.run = flags.train.run;
  request.from = flags.train.checkpoint();
  if (request.from && *request.from != flags.train.from) {
    tell_note(fmt::format("{} is {}", flags.train.from.string(), request.from->string()));
  }
  request.resume = flags.resume;
  request.profile = flags.train.profile;
  return {std::move(request), std::move(parsed.notes)};
}

ordered_json train(const AskedRun& asked, const Session& session) {
  const engine::TrainRequest& request = asked.request;
  Interrupts interrupts;
  if (request.ranks != nullptr && request.ranks->rank() != Rank{}) {
    Silent silent{
        engine::RunDirectory(engine::rank_directory(request.run, request.ranks->rank().value()))};
    static_cast<void>(engine::train(request, silent, interrupts.count()));
    return {};
  }
  Face face(session, interrupts, request.run, asked.notes);
  const engine::TrainReport report = engine::train(request, face, interrupts.count());
  face.finish();
  if (!session.json) answer("{}", to_text(report));
  ordered_json document = to_json(report);
  document["plan"] = face.plan();
  return document;
}

/// Joins the other ranks, and tells them if this one cannot train.
ordered_json train_as_rank(const TrainCommandFlags& flags, const comm::LaunchEnvironment& launch,
                           const Session& session) {
  AskedRun asked;
  engine::TrainRequest& request = asked.request;
  std::optional<Error> wrong;
  try {
    asked = asked_run(flags, launch.ranks);
  } catch (const Error& error) {
    wrong = error;
  }
  const auto ranks = join_ranks(launch, communicator_options(launch, request.options.timeout));
  request.ranks = ranks.get();
  try {
    if (wrong.has_value()) {
      ranks->abandon(wrong->what());
      throw *wrong;
    }
    return train(asked, session);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("rank {} of {}: {}", ranks->rank().value(),
                                          ranks->ranks(), error.what()));
  }
}

ordered_json run(const TrainCommandFlags& flags, const Session& session) {
  const std::optional<comm::LaunchEnvironment> launch =
      launch_environment(flags.train.run, flags.trust_network);
  if (launch.has_value() && launch->ranks > 1) return train_as_rank(flags, *launch, session);
  return train(asked_run(flags), session);
}

}  // namespace

void add_train(Command app, Session& session) {
  auto flags = std::make_shared<TrainCommandFlags>();
  Command command = add_command(app, session, "train", "Trains a model",
                                [flags, &session] { return run(*flags, session); });
  flags->train.add_to(command);
  command.add_option("--data", flags->data, "This directory has train.bin, val.bin and meta.json")
      .required();
  command
      .add_option("--run", flags->train.run,
                  "The run keeps its state, metrics and configuration in this directory")
      .required();
  command.add_flag("--resume", flags->resume, "The run continues from its last committed step");
  add_trust_network(command, flags->trust_network);
}

}  // namespace spillway::cli
