#include "runtime/engine/train_loop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <nlohmann/json.hpp>

#include "runtime/base/error.hpp"
#include "runtime/engine/automatic.hpp"
#include "runtime/engine/budgets.hpp"
#include "runtime/engine/calibrate.hpp"
#include "runtime/engine/kept_checkpoints.hpp"
#include "runtime/engine/monitors.hpp"
#include "runtime/engine/run_claim.hpp"
#include "runtime/engine/run_reader.hpp"
#include "runtime/engine/run_tokenizer.hpp"
#include "runtime/engine/running_median.hpp"
#include "runtime/engine/schedule.hpp"
#include "runtime/engine/start_values.hpp"
#include "runtime/engine/step_trace.hpp"
#include "runtime/engine/training_data.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/model/initialize.hpp"
#include "runtime/plan/fastest.hpp"
#include "runtime/plan/theory.hpp"

namespace spillway::engine {
namespace {

bool is_run(const std::filesystem::path& path) { return RunDirectory(path).exists(); }

/// One run of `train`: the pieces that its phases share.
class Loop {
 public:
  Loop(const TrainRequest& request, TrainObserver& observer, const std::atomic<int>& interrupt)
      : request_(request),
        observer_(observer),
        interrupt_(interrupt),
        claim_({.run = request.run, .resume = request.resume, .nvme = request.options.nvme}),
        known_(request.profile) {}

  TrainReport run();

 private:
  void open();
  void resolve_automatic();
  void make_model();
  void resume_model(const DeviceRecord& recorded);
  void plan();
  void create_trainer();
  void start_from_run();
  void open_metrics();
  void check_present() const;
  void note_commit();
  void finish_save();
  void save_if_due();
  void train_steps();
  void evaluate_if_due();
  void commit();
  void finish();
  [[noreturn]] void fail();
  [[nodiscard]] bool evaluation_due(std::uint64_t step) const;

  const TrainRequest& request_;
  TrainObserver& observer_;
  const std::atomic<int>& interrupt_;
  RunClaim claim_;
  MachineTuning known_;

  model::ModelConfig config_;
  TrainOptions options_;
  std::optional<TrainingData> data_;
  std::optional<data::Sampler> sampler_;
  std::uint64_t steps_ = 0;
  nvme_swap::StoreOptions store_options_;
  RunConfig run_config_;
  ModelRuntime model_;
  std::size_t measured_products_ = 0;
  plan::Workload workload_;
  plan::Budgets budgets_;
  plan::Placement placement_;
  Tuning tuning_;
  plan::MachineProfile profile_;
  plan::Prediction prediction_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<KeptCheckpoints> checkpoints_;
  std::optional<MetricsLog> metrics_;
  std::optional<Monitors> monitors_;
  std::optional<StepTrace> trace_;
  std::optional<std::uint64_t> noted_commit_;
  RunningMedian step_seconds_;
  TrainReport report_;
};

/// Whatever refuses this start does so before a file of the run is changed.
void Loop::open() {
  config_ = model_of(request_, claim_.run());
  options_ = request_.options;
  resolve(options_, config_);
  resolve_automatic();
  if (request_.from) check_tokenizer(request_.data, *request_.from);
  data_.emplace(TrainingData::open(request_.data, config_, options_.context));
  sampler_.emplace(data_->train.size(), options_.context, options_.order, options_.seed);
  steps_ = steps_of(options_, *sampler_);
  check_momentum(options_.schedule, steps_);
  store_options_.engine = options_.io_engine;
  store_options_.disk_gigabytes_per_second = options_.disk_gbps;
  RunConfig& now = run_config_;
  now = {.id = {},
         .model = config_,
         .options = options_,
         .data = std::filesystem::absolute(request_.data).string(),
         .data_fingerprint = data_->fingerprint(config_.vocab_size)};
  if (claim_.resumes()) {
    const RunConfig& recorded = claim_.recorded();
    // A schedule that was to end with the run keeps the end that it started with.
    options_.schedule = resolve_schedule(options_.schedule, recorded.options.schedule.total_steps);
    now.options = options_;
    check_same_mathematics(recorded, now);
    resume_model(recorded.device);
  } else {
    options_.schedule = resolve_schedule(options_.schedule, steps_);
    now.options = options_;
    make_model();
  }
  claim_.prepare_state();
  store_options_.directories = claim_.state_directories();
  store_options_.owner = claim_.manifest().state_id;
  for (const std::string& note : claim_.take_notes()) observer_.noted(note);
}

/// A resumed run keeps what it chose when it began.
void Loop::resolve_automatic() {
  if (claim_.resumes()) take_automatic(options_, claim_.recorded().options);
  const auto budgets = [this](const TrainOptions& options, const plan::Workload& step) {
    return make_budgets(options, request_.run, step);
  };
  for (const std::string& line : choose_automatic(options_, config_, budgets)) {
    observer_.noted(line);
  }
}

/// Operators before a byte is written: a device that cannot run leaves no run behind.
void Loop::make_model() {
  std::optional<DeviceRecord> origin;
  if (request_.from && is_run(*request_.from)) {
    origin = RunDirectory(*request_.from).read_config().device;
  }
  model_ = make_model_runtime(
      config_, options_,
      choose_products({.continued = origin ? &*origin : nullptr, .measured = known_.products()}));
  run_config_.device = record_of(options_, *model_.ops);
  measured_products_ = products_of(run_config_.device).common(known_.products());
  if (measured_products_ > 0) {
    observer_.noted(
        fmt::format("{} matrix products use algorithms that were measured on this "
                    "machine ({})",
                    measured_products_, known_.file().string()));
  }
}

void Loop::resume_model(const DeviceRecord& recorded) {
  model_ = make_model_runtime(
      config_, options_, choose_products({.resumed = &recorded, .measured = known_.products()}));
  run_config_.device = record_of(options_, *model_.ops);
  if (run_config_.device.name != recorded.name ||
      run_config_.device.libraries != recorded.libraries) {
    observer_.noted(fmt::format(
        "the run began on {} {}; on {} {} its bits may differ from those "
        "of an uninterrupted run",
        recorded.name, recorded.libraries, run_config_.device.name, run_config_.device.libraries));
  }
}

void Loop::plan() {
  workload_ = make_workload(config_, *model_.transformer, options_);
  budgets_ = make_budgets(options_, request_.run, workload_);
  if (claim_.resumes())
    budgets_.nvme = Bytes{~std::uint64_t{0} >> 1};  // the swap files are there already
  placement_ = place(config_, options_, workload_, budgets_);
  const CalibrationRequest request{.config = config_,
                                   .options = options_,
                                   .model = model_,
                                   .workload = workload_,
                                   .budgets = budgets_,
                                   .state_directories = store_options_.directories};
  tuning_ =
      tune(request, placement_, known_, [this](const std::string& text) { observer_.noted(text); });
  tune_store(tuning_.drives, store_options_);
  profile_ = calibrate(request, tuning_);
  plan::PlannedStep fastest = plan::fastest_placement(
      workload_, budgets_, placement_request(options_), profile_, placement_);
  placement_ = std::move(fastest.placement);
  prediction_ = std::move(fastest.prediction);
  store_options_.weights = disk_weights(request, tuning_.drives, placement_);
  if (options_.commit_every == 0) {
    options_.commit_every =
        planned_commit_every(workload_, placement_, profile_, prediction_.step_seconds);
  }
}

void Loop::create_trainer() {
  const bool resumes = claim_.resumes();
  trainer_ = std::make_unique<Trainer>(config_, options_, placement_, budgets_, std::move(model_),
                                       workload_, store_options_, resumes, tuning_.update_prefetch);
  checkpoints_.emplace(claim_.run(), claim_.manifest().id, options_.save_every, options_.keep);
  checkpoints_->check_space(trainer_->store().layout());
  claim_.record(run_config_);
  if (!resumes && request_.from && is_run(*request_.from)) {
    start_from_run();
  } else if (!resumes && request_.initial != nullptr) {
    trainer_->initialize(*request_.initial);
  } else if (!resumes) {
    trainer_->initialize(*initial_parameters(request_, config_, trainer_->layout(), options_.seed));
  }
  open_metrics();
  trace_.emplace(trainer_->most_ops());
  observer_.planned({.workload = workload_,
                     .placement = placement_,
                     .budgets = budgets_,
                     .profile = profile_,
                     .prediction = prediction_,
                     .memory = plan::memory_items(workload_, placement_),
                     .steps = steps_,
                     .first_step = trainer_->state().step + 1,
                     .commit_every = options_.commit_every,
                     .device = options_.device.value_or(DeviceKind::host),
                     .measured_products = measured_products_});
  claim_.keep();
  monitors_.emplace(options_, request_.run, trainer_->state().step,
                    [this](const std::string& text) { observer_.noted(text); });
}

void Loop::open_metrics() {
  metrics_.emplace(claim_.run().metrics(), trainer_->state().step);
  if (metrics_->damaged() > 0) {
    observer_.noted(fmt::format("{}: {} lines that could not be read were dropped",
                                claim_.run().metrics().string(), metrics_->damaged()));
  }
}

void Loop::start_from_run() {
  const RunConfig origin = RunDirectory(*request_.from).read_config();
  for (const std::string& difference : differences_in_mathematics(origin, run_config_)) {
    observer_.noted(fmt::format("not as in {}: {}", request_.from->string(), difference));
  }
  retry_overtaken([&] {
    const RunReader source(*request_.from);
    const auto result = trainer_->adopt(source.tiles());
    if (result == nvme_swap::TileRead::moved_on) throw Overtaken(*request_.from);
  });
}

/// Files can be removed while they are open.
void Loop::check_present() const {
  claim_.check_present();
  trainer_->store().check_present();
  metrics_->check_present();
}

/// What a commit relies on is looked at again when it is durable.
void Loop::note_commit() {
  if (trainer_->committed_step() == noted_commit_) return;
  noted_commit_ = trainer_->committed_step();
  check_present();
  claim_.note_commit();
}

void Loop::finish_save() {
  const auto saved = checkpoints_->finish(*trainer_, run_config_);
  if (saved) observer_.saved(saved->step, saved->directory);
}

void Loop::save_if_due() {
  if (checkpoints_->due(trainer_->state().step)) checkpoints_->start(*trainer_);
  finish_save();
}

bool Loop::evaluation_due(std::uint64_t step) const {
  if (!data_->validation) return false;
  const bool last = step == steps_;
  return last || (options_.eval_every > 0 && step % options_.eval_every == 0);
}

/// Of the step whose line is the last one of the metrics, if that lacks it: after the step, or
/// where the process was killed between the evaluation's commit and its line.
void Loop::evaluate_if_due() {
  const std::uint64_t step = trainer_->state().step;
  if (!evaluation_due(step) || !metrics_->can_amend()) return;
  if (trainer_->commits_to_evaluate()) metrics_->synchronize();
  const Evaluation evaluation = trainer_->evaluate(*data_->validation);
  note_commit();
  metrics_->amend(evaluation.loss);
  monitors_->append(step, evaluation);
  report_.val_loss = evaluation.loss;
  observer_.evaluated(step, evaluation);
}

void Loop::train_steps() {
  keep_tokenizer({.run = claim_.run().root(),
                  .from = request_.from,
                  .data = request_.data,
                  .old = claim_.resumes() ? OldTokenizer::stays : OldTokenizer::goes});
  save_if_due();  // the process before may have been killed between a commit and its copy
  evaluate_if_due();
  while (trainer_->state().step < steps_ && interrupt_.load(std::memory_order_relaxed) == 0) {
    if (trainer_->commits_next()) metrics_->synchronize();
    const StepResult result = trainer_->step(data_->train, *sampler_);
    const Exposed exposed = trainer_->step_executor().exposed();
    metrics_->append(result, exposed);
    monitors_->append(result);
    note_commit();
    finish_save();
    save_if_due();  // before an evaluation, which writes the state too
    trace_->record(trainer_->step_executor());
    step_seconds_.add(result.seconds);
    report_.last_loss = result.loss;
    observer_.stepped(result, exposed, *trainer_);
    evaluate_if_due();
  }
}

void Loop::commit() {
  metrics_->synchronize();
  trainer_->commit();
  note_commit();
  finish_save();
}

/// Ends the run with the error that is under way, after its last step is true on disk if what is
/// in memory is still sound. A step without its line in the metrics is not committed: it is done
/// again, and has its line then.
void Loop::fail() {
  const std::exception_ptr error = std::current_exception();
  if (trainer_ && metrics_ && metrics_->is_complete() && trainer_->is_sound() &&
      trainer_->placement().commits)
    try {
      commit();
      observer_.noted(fmt::format("step {} is committed before the run ends with an error",
                                  trainer_->state().step));
    } catch (const std::exception& second) {
      observer_.noted(
          fmt::format("the last step could not be committed either: {}", second.what()));
    }
  std::rethrow_exception(error);
}

void Loop::finish() {
  commit();
  check_present();
  // A process that had no step left to do has no trace; that of the steps before it stays.
  if (step_seconds_.count() > 0) trace_->write(claim_.run().trace());
  const Trainer& trainer = *trainer_;
  report_.steps = step_seconds_.count();
  report_.last_step = trainer.state().step;
  report_.skipped = trainer.state().skipped;
  report_.interrupted = trainer.state().step < steps_;
  report_.predicted_step_seconds = prediction_.step_seconds;
  report_.measured_step_seconds = step_seconds_.value();
  if (report_.measured_step_seconds > 0) {
    report_.tokens_per_second =
        static_cast<double>(workload_.tokens * workload_.micro_batches * workload_.rounds) /
        report_.measured_step_seconds;
  }
  const auto device = trainer.backend().usage(offload::MemoryKind::device);
  report_.device_high_water = device.high_water;
  report_.device_capacity = device.capacity;
  report_.host_high_water = trainer.backend().usage(offload::MemoryKind::pinned).high_water;
  report_.state_read = trainer.store().counters().read;
  report_.state_written = trainer.store().counters().written;
}

TrainReport Loop::run() {
  open();
  plan();
  create_trainer();
  try {
    train_steps();
  } catch (...) {
    fail();
  }
  finish();
  return report_;
}

}  // namespace

model::ModelConfig model_config_in(const std::filesystem::path& from) {
  return is_run(from) ? RunDirectory(from).read_config().model
                      : model::load_model_config(from / "config.json");
}

TrainReport train(const TrainRequest& request, TrainObserver& observer,
                  const std::atomic<int>& interrupt) {
  return Loop(request, observer, interrupt).run();
}

}  // namespace spillway::engine
