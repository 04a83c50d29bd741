#include "runtime/engine/train_loop.hpp"

#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/resolve.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/engine/report/metrics_log.hpp"
#include "runtime/engine/report/monitors.hpp"
#include "runtime/engine/report/running_median.hpp"
#include "runtime/engine/report/step_trace.hpp"
#include "runtime/engine/run/contents.hpp"
#include "runtime/engine/run/job_start.hpp"
#include "runtime/engine/run/kept_checkpoints.hpp"
#include "runtime/engine/run/reader.hpp"
#include "runtime/engine/run/run.hpp"
#include "runtime/engine/run/start_values.hpp"
#include "runtime/engine/run/tokenizer.hpp"
#include "runtime/model/hf/checkpoint.hpp"
#include "runtime/plan/predict/flops.hpp"

namespace spillway::engine {
namespace {

bool is_run(const std::filesystem::path& path) { return holds_run(RunDirectory(path)); }

/// The steps of one run, with what surrounds them.
class TrainLoop {
 public:
  /// All references outlive this object. `claim` is that of the request.
  TrainLoop(const TrainRequest& request, RankGroups& ranks, RunClaim& claim,
            TrainObserver& observer, const std::atomic<int>& interrupt)
      : request_(request),
        ranks_(ranks),
        claim_(claim),
        observer_(observer),
        interrupt_(interrupt),
        run_(prepare_run(request, ranks, claim, observer)) {}

  /// Records the run, and gives a new one its state. Nothing else of this object is called before.
  void begin();
  TrainReport run();

 private:
  [[nodiscard]] const Planned& plan() const { return run_.trainer.engine().plan(); }
  void note_stale_weights();
  void note_delayed_updates();
  void initialize();
  void start_from_run();
  void open_metrics();
  void check_present() const;
  void note_commit();
  void finish_save();
  void save_if_due();
  void keep_tokenizer_files() const;
  [[nodiscard]] bool interrupted();
  void train_steps();
  void train_step();
  void report(std::span<const StepResult> results);
  void report(const StepResult& result, const StepUse& use);
  [[nodiscard]] bool is_over(std::uint64_t step) const { return step >= run_.steps; }
  void evaluate_if_due();
  void commit();
  void commit_after_error();
  void write_trace();
  void finish();
  [[nodiscard]] bool evaluation_due(std::uint64_t step) const;

  const TrainRequest& request_;
  RankGroups& ranks_;
  RunClaim& claim_;
  TrainObserver& observer_;
  const std::atomic<int>& interrupt_;
  Run run_;
  std::optional<KeptCheckpoints> checkpoints_;
  std::optional<MetricsLog> metrics_;
  std::optional<Monitors> monitors_;
  std::optional<StepTrace> trace_;
  std::vector<StepUse> uses_;  // of steps whose results are to come
  std::optional<std::uint64_t> noted_commit_;
  RunningMedian step_seconds_;
  TrainReport report_;
};

void TrainLoop::begin() {
  const bool resumes = claim_.resumes();
  checkpoints_.emplace(RunDirectory(claim_.job()), ranks_,
                       KeptCheckpoints::Options{.id = claim_.manifest().id,
                                                .job = claim_.manifest().job,
                                                .save_every = plan().options.save_every,
                                                .keep = plan().options.keep,
                                                .part = claim_.manifest().part});
  checkpoints_->check_space(run_.trainer.engine().store()->layout());
  record(ranks_, claim_, run_.config);
  if (!resumes && request_.from && is_run(*request_.from)) {
    start_from_run();
  } else if (!resumes) {
    initialize();
  }
  open_metrics();
  trace_.emplace(run_.trainer.cycle().lists().most_ops());
  uses_.reserve(run_.trainer.most_results());
  observer_.planned({.plan = plan(),
                     .step = run_.trainer.cycle().lists().step_plan(),
                     .steps = run_.steps,
                     .first_step = run_.trainer.state().step + 1,
                     .measured_products = run_.measured_products,
                     .shares = run_.share.shown,
                     .device_name = run_.config.device.name,
                     .flops_per_token = plan::flops_per_token(
                         decoder_shape(run_.config.model, plan().options.context))});
  claim_.keep();
  if (plan().workload.stale.stays_full()) note_stale_weights();
  if (plan().workload.stale.delays_updates) note_delayed_updates();
  if (!ranks_.leads()) return;
  monitors_.emplace(plan().options, plan().workload.replicas.count, request_.run,
                    run_.trainer.state().step,
                    [this](const std::string& text) { observer_.noted(text); });
}

void TrainLoop::note_stale_weights() {
  observer_.noted(
      "with stale weights this run cannot be resumed once it has ended; a new run --from it "
      "begins with its newest weights");
  if (run_.trainer.most_results() > 1) {
    observer_.noted(
        fmt::format("the stages meet after every {} steps, and tell losses and norms then; set "
                    "spillway.pipeline_meet_every to hear of them earlier",
                    run_.trainer.most_results()));
  }
}

void TrainLoop::note_delayed_updates() {
  observer_.noted(
      fmt::format("other mathematics (spillway.update delayed): from step {} on, forward and "
                  "backward do not have the update of the step before",
                  plan().options.delayed_from));
}

void TrainLoop::initialize() {
  const model::ModelLayout layout =
      model::make_layout(run_.config.model, plan().options.operator_tile);
  std::unique_ptr<model::ParameterSource> made;
  if (request_.initial == nullptr) {
    made = initial_parameters(request_, run_.config.model, layout, plan().options.seed);
  }
  const model::ParameterSource& source = made ? *made : *request_.initial;
  run_.trainer.cycle().initialize(HeldParameters(source, layout, plan().options.compute));
}

void TrainLoop::open_metrics() {
  if (!ranks_.leads()) return;
  metrics_.emplace(claim_.run().metrics(), run_.trainer.state().step);
  if (metrics_->damaged() > 0) {
    observer_.noted(fmt::format("{}: {} lines that could not be read were dropped",
                                claim_.run().metrics().string(), metrics_->damaged()));
  }
}

void TrainLoop::start_from_run() {
  const RunConfig origin = RunDirectory(*request_.from).read_config();
  for (const std::string& difference : differences_in_mathematics(origin, run_.config)) {
    observer_.noted(fmt::format("not as in {}: {}", request_.from->string(), difference));
  }
  retry_overtaken([&] {
    const RunReader reader(*request_.from);
    const DType now = plan().options.compute;
    const bool may_exceed = now == DType::fp16 && origin.options.compute != now;
    if (may_exceed && ranks_.leads()) {
      HeldParameters(reader, reader.layout(), now).check_all();
    }
    run_.trainer.cycle().adopt(reader.saved());
  });
  check_same_step(ranks_, *request_.from, StepIndex{run_.trainer.state().step});
}

/// Files can be removed while they are open.
void TrainLoop::check_present() const {
  claim_.check_present();
  run_.trainer.engine().store()->check_present();
  if (metrics_) metrics_->check_present();
}

/// Checks again, once the commit is durable, the files that it relies on.
void TrainLoop::note_commit() {
  if (run_.trainer.cycle().commits().committed_step() == noted_commit_) return;
  noted_commit_ = run_.trainer.cycle().commits().committed_step();
  check_present();
  claim_.note_commit();
}

void TrainLoop::finish_save() {
  const auto saved = checkpoints_->finish(run_.trainer, run_.config);
  if (saved) observer_.saved(saved->step, saved->directory);
}

void TrainLoop::save_if_due() {
  if (checkpoints_->due(run_.trainer.state().step)) checkpoints_->start(run_.trainer);
  finish_save();
}

bool TrainLoop::evaluation_due(std::uint64_t step) const {
  if (!run_.data.validation) return false;
  const bool last = step == run_.steps;
  return last || (plan().options.eval_every > 0 && step % plan().options.eval_every == 0);
}

/// Adds it to the last line of the metrics, if that lacks it: after the step, or
/// where the process was killed between the evaluation's commit and its line.
void TrainLoop::evaluate_if_due() {
  const std::uint64_t step = run_.trainer.state().step;
  if (!evaluation_due(step)) return;
  const bool lacks = metrics_ && metrics_->can_amend();
  if (!ranks_.first(lacks)) return;
  if (metrics_ && run_.trainer.cycle().evaluation_commits()) metrics_->synchronize();
  const Evaluation evaluation = run_.trainer.evaluate(*run_.data.validation);
  note_commit();
  if (metrics_) metrics_->amend(evaluation.loss);
  if (monitors_) monitors_->append(step, evaluation);
  report_.val_loss = evaluation.loss;
  observer_.evaluated(step, evaluation);
}

void TrainLoop::report(const StepResult& result, const StepUse& use) {
  if (metrics_) metrics_->append(result, use.exposed);
  if (monitors_) monitors_->append(result);
  step_seconds_.add(result.seconds);
  report_.last_loss = result.loss;
  observer_.stepped(result, use);
}

void TrainLoop::report(std::span<const StepResult> results) {
  for (std::size_t i = 0; i < results.size(); ++i) report(results[i], uses_[i]);
  if (!results.empty()) uses_.clear();
}

/// Stages of a pipeline that need not meet after each step meet before anything else that they do
/// together.
void TrainLoop::train_step() {
  // Looks at the disk, which may fail: after the step, its line would be lost.
  const bool saves = checkpoints_->due(run_.trainer.state().step + 1);
  if (metrics_ && run_.trainer.cycle().commits_next()) metrics_->synchronize();
  std::span<const StepResult> results =
      run_.trainer.step(run_.data.train, run_.sampler, saves ? Follows::copy : Follows::step);
  uses_.push_back({.exposed = run_.trainer.cycle().last_step().exposed(),
                   .device_busy_seconds = run_.trainer.cycle().last_step().busy(plan::Lane::gpu),
                   .device = run_.trainer.engine().backend().usage(offload::MemoryKind::device),
                   .pinned = run_.trainer.engine().backend().usage(offload::MemoryKind::pinned)});
  trace_->record(run_.trainer.cycle().last_step());
  const std::uint64_t step = run_.trainer.state().step;
  const bool meet = is_over(step) || evaluation_due(step) || saves;
  if (meet && !run_.trainer.results_complete()) results = run_.trainer.gather_results();
  report(results);
  note_commit();
  finish_save();
  // The step that ends the training has its line like any other.
  for (const StepResult& r : results) check(r.diverged.empty(), ErrorCode::diverged, r.diverged);
  save_if_due();  // before an evaluation, which writes the state too
}

void TrainLoop::keep_tokenizer_files() const {
  keep_tokenizer({.run = claim_.run().root(),
                  .from = request_.from,
                  .data = request_.data,
                  .old = claim_.resumes() ? OldTokenizer::stays : OldTokenizer::goes});
}

/// A signal reaches the ranks one after the other; they stop after the same step.
bool TrainLoop::interrupted() {
  if (!run_.trainer.results_complete()) return false;
  const bool signalled = interrupt_.load(std::memory_order_relaxed) != 0;
  return ranks_.any(signalled ? Vote::yes : Vote::no);
}

void TrainLoop::train_steps() {
  if (ranks_.leads()) keep_tokenizer_files();
  save_if_due();  // the process before may have been killed between a commit and its copy
  evaluate_if_due();
  while (!is_over(run_.trainer.state().step) && !interrupted()) {
    train_step();
    evaluate_if_due();
  }
}

void TrainLoop::commit() {
  if (metrics_) metrics_->synchronize();
  run_.trainer.cycle().commit();
  note_commit();
  finish_save();
}

/// Makes the last step true on disk before an error ends the run, if what is in memory is still
/// sound. A step without its line in the metrics is not committed: it is done again, and has its
/// line then. Many ranks commit together or not at all.
void TrainLoop::commit_after_error() {
  if (!ranks_.alone()) return;
  const bool committable = metrics_->is_complete() && run_.trainer.cycle().is_sound() &&
                           run_.trainer.engine().placement().commits;
  if (!committable) return;
  try {
    commit();
    observer_.noted(fmt::format("step {} is committed before the run ends with an error",
                                run_.trainer.state().step));
  } catch (const std::exception& second) {
    observer_.noted(fmt::format("the last step could not be committed either: {}", second.what()));
  }
}

/// A process that had no step left to do has no trace; that of the steps before it stays. The trace
/// only shows the run's speed: without it the run is no less whole.
void TrainLoop::write_trace() {
  if (step_seconds_.count() == 0 || !ranks_.leads()) return;
  try {
    trace_->write(claim_.run().trace());
  } catch (const Error& error) {
    observer_.noted(fmt::format("the trace is not written: {}", error.what()));
  }
}

void TrainLoop::finish() {
  commit();
  check_present();
  write_trace();
  report_.steps = step_seconds_.count();
  report_.last_step = run_.trainer.state().step;
  report_.skipped = run_.trainer.state().skipped;
  report_.interrupted = run_.trainer.state().step < run_.steps;
  report_.predicted_step_seconds = plan().prediction.step_seconds;
  report_.measured_step_seconds = step_seconds_.value();
  if (report_.measured_step_seconds > 0) {
    report_.tokens_per_second =
        static_cast<double>(plan::tokens_of_step(plan().workload)) / report_.measured_step_seconds;
  }
  const auto device = run_.trainer.engine().backend().usage(offload::MemoryKind::device);
  report_.device_high_water = device.high_water;
  report_.device_capacity = device.capacity;
  report_.host_high_water =
      run_.trainer.engine().backend().usage(offload::MemoryKind::pinned).high_water;
  report_.state_read = run_.trainer.engine().store()->counters().read;
  report_.state_written = run_.trainer.engine().store()->counters().written;
}

TrainReport TrainLoop::run() {
  try {
    train_steps();
  } catch (...) {
    commit_after_error();
    throw;
  }
  finish();
  return report_;
}

}  // namespace

TrainReport train(const TrainRequest& request, TrainObserver& observer,
                  const std::atomic<int>& interrupt) {
  // Outlive what may throw: other ranks hear of an error before this one gives its claim up.
  std::optional<RankGroups> ranks;
  std::unique_ptr<RunClaim> claim;
  std::optional<TrainLoop> loop;
  return abandon_on_error(request.ranks, [&] {
    if (const auto note = check_device(request.options)) observer.noted(*note);
    ranks.emplace(request.ranks,
                  grid_of(request.options, request.ranks == nullptr ? 1 : request.ranks->ranks()));
    claim = claim_run(request, *ranks);
    {
      const comm::AtWork preparing(request.ranks);
      loop.emplace(request, *ranks, *claim, observer, interrupt);
      loop->begin();
    }
    return loop->run();
  });
}

}  // namespace spillway::engine
