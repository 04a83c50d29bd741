#include "runtime/engine/train_loop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/base/error.hpp"
#include "runtime/engine/calibrate.hpp"
#include "runtime/engine/kept_checkpoints.hpp"
#include "runtime/engine/run_reader.hpp"
#include "runtime/engine/schedule.hpp"
#include "runtime/engine/step_trace.hpp"
#include "runtime/engine/training_data.hpp"
#include "runtime/model/checkpoint.hpp"
#include "runtime/model/initialize.hpp"
#include "runtime/plan/fastest.hpp"
#include "runtime/plan/theory.hpp"

namespace spillway::engine {
namespace {

/// Commits of state that lives in memory may keep the disk busy for this share of the time: they
/// are written behind a step, but wear the drive.
constexpr double kCommitShare = 0.05;

bool is_run(const std::filesystem::path& path) { return RunDirectory(path).exists(); }

model::ModelConfig model_of(const TrainRequest& request, const RunDirectory& run) {
  if (request.model) return *request.model;
  if (request.from) return model_config_in(*request.from);
  check(request.resume && run.exists(), ErrorCode::invalid_argument,
        "no model: give --model CONFIG_JSON for a new one or --from DIR for a trained one");
  return run.read_config().model;
}

std::uint64_t steps_of(const TrainOptions& options, const data::Sampler& sampler) {
  if (options.steps > 0) return options.steps;
  const std::uint64_t windows =
      std::uint64_t{options.micro_batch} * options.gradient_accumulation_steps;
  return std::max<std::uint64_t>(sampler.windows() / windows, 1);
}

/// Steps between commits so that writing all state takes `kCommitShare` of their time.
std::uint64_t planned_commit_every(const plan::Workload& workload, const plan::Placement& placement,
                                   const plan::MachineProfile& profile, double step_seconds) {
  double bytes = 0;
  for (std::size_t b = 0; b < workload.blocks.size(); ++b) {
    if (placement.blocks[b].state == plan::Tier::nvme) continue;
    const Bytes state = plan::slot_bytes(placement.format, workload.blocks[b].padded_parameters);
    bytes += static_cast<double>(state.value());
  }
  if (bytes == 0) return 1;
  const double commit_seconds = bytes / profile.nvme_write;
  return static_cast<std::uint64_t>(
      std::ceil(std::max(1.0, commit_seconds / (kCommitShare * step_seconds))));
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::unique_ptr<model::ParameterSource> initial_parameters(const TrainRequest& request,
                                                           const model::ModelConfig& config,
                                                           const model::ModelLayout& layout,
                                                           std::uint64_t seed) {
  if (request.from) {
    return std::make_unique<model::CheckpointReader>(*request.from, config, layout);
  }
  return std::make_unique<model::RandomInitializer>(config, layout, seed);
}

/// One run of `train`: the pieces that its phases share.
class Loop {
 public:
  Loop(const TrainRequest& request, TrainObserver& observer, const std::atomic<int>& interrupt)
      : request_(request),
        observer_(observer),
        interrupt_(interrupt),
        run_(request.run),
        known_(request.profile) {}

  TrainReport run();

 private:
  void open();
  void make_model();
  void resume_model(const DeviceRecord& recorded);
  void plan();
  void create_trainer();
  void start_from_run();
  void finish_save();
  void save_if_due();
  void train_steps();
  void finish();
  [[nodiscard]] bool evaluation_due(std::uint64_t step) const;

  const TrainRequest& request_;
  TrainObserver& observer_;
  const std::atomic<int>& interrupt_;
  RunDirectory run_;
  MachineTuning known_;

  model::ModelConfig config_;
  TrainOptions options_;
  std::optional<TrainingData> data_;
  std::optional<data::Sampler> sampler_;
  std::uint64_t steps_ = 0;
  nvme_swap::StoreOptions store_options_;
  RunConfig run_config_;
  bool resumes_ = false;
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
  std::optional<StepTrace> trace_;
  std::vector<double> step_seconds_;
  TrainReport report_;
};

void Loop::open() {
  config_ = model_of(request_, run_);
  options_ = request_.options;
  resolve(options_, config_);
  data_.emplace(TrainingData::open(request_.data, config_));
  sampler_.emplace(data_->train.size(), options_.context, options_.order, options_.seed);
  steps_ = steps_of(options_, *sampler_);
  check_momentum(options_.schedule, steps_);

  store_options_.directories = state_directories(options_, request_.run);
  store_options_.engine = options_.io_engine;
  store_options_.disk_gigabytes_per_second = options_.disk_gbps;
  if (run_.exists()) {
    const auto recorded = run_.read_manifest();
    nvme_swap::StoreOptions where = store_options_;
    where.directories = recorded;
    const bool committed = nvme_swap::TileStore::has_commit(where);
    check(!committed || request_.resume, ErrorCode::invalid_argument,
          fmt::format("{} holds a run with a committed step; continue it with --resume or choose "
                      "another --run",
                      request_.run.string()));
    resumes_ = committed;
    if (committed) store_options_.directories = recorded;
  }
  RunConfig& now = run_config_;
  now = {.model = config_,
         .options = options_,
         .data = std::filesystem::absolute(request_.data).string(),
         .data_fingerprint = data_->fingerprint(config_.vocab_size)};
  if (resumes_) {
    const RunConfig recorded = run_.read_config();
    // A schedule that was to end with the run keeps the end that it started with.
    options_.schedule = resolve_schedule(options_.schedule, recorded.options.schedule.total_steps);
    now.options = options_;
    check_same_mathematics(recorded, now);
    resume_model(recorded.device);
    return;
  }
  options_.schedule = resolve_schedule(options_.schedule, steps_);
  now.options = options_;
  make_model();
  std::filesystem::create_directories(request_.run);
  for (const auto& directory : store_options_.directories) {
    std::filesystem::create_directories(directory);
  }
  run_.write_config(now);
  run_.write_manifest(store_options_.directories);
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
  budgets_ = make_budgets(options_, request_.run);
  if (resumes_) budgets_.nvme = Bytes{~std::uint64_t{0} >> 1};  // the swap files are there already
  placement_ = place(config_, options_, workload_, budgets_);
  const CalibrationRequest request{.config = config_,
                                   .options = options_,
                                   .model = model_,
                                   .workload = workload_,
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
  trainer_ =
      std::make_unique<Trainer>(config_, options_, placement_, budgets_, std::move(model_),
                                workload_, store_options_, resumes_, tuning_.update_prefetch);
  checkpoints_.emplace(run_, options_.save_every, options_.keep);
  checkpoints_->check_space(trainer_->store().layout());
  if (!resumes_ && request_.from && is_run(*request_.from)) {
    start_from_run();
  } else if (!resumes_ && request_.initial != nullptr) {
    trainer_->initialize(*request_.initial);
  } else if (!resumes_) {
    trainer_->initialize(*initial_parameters(request_, config_, trainer_->layout(), options_.seed));
  }
  metrics_.emplace(run_.metrics(), trainer_->state().step);
  trace_.emplace(trainer_->most_ops());
  step_seconds_.reserve(steps_);
  observer_.planned({.workload = workload_,
                     .placement = placement_,
                     .budgets = budgets_,
                     .profile = profile_,
                     .prediction = prediction_,
                     .memory = plan::memory_items(workload_, placement_),
                     .steps = steps_,
                     .first_step = trainer_->state().step + 1,
                     .commit_every = options_.commit_every,
                     .measured_products = measured_products_});
}

void Loop::start_from_run() {
  const RunReader source(*request_.from);
  for (const std::string& difference : differences_in_mathematics(source.config(), run_config_)) {
    observer_.noted(fmt::format("not as in {}: {}", request_.from->string(), difference));
  }
  trainer_->adopt(source.store());
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

void Loop::train_steps() {
  save_if_due();  // the process before may have been killed between a commit and its copy
  while (trainer_->state().step < steps_ && interrupt_.load(std::memory_order_relaxed) == 0) {
    const StepResult result = trainer_->step(data_->train, *sampler_);
    finish_save();
    save_if_due();  // before an evaluation, which writes the state too
    const Exposed exposed = trainer_->step_executor().exposed();
    trace_->record(trainer_->step_executor());
    step_seconds_.push_back(result.seconds);
    report_.last_loss = result.loss;
    std::optional<double> val_loss;
    observer_.stepped(result, exposed, *trainer_);
    if (evaluation_due(result.step)) {
      const Evaluation evaluation = trainer_->evaluate(*data_->validation);
      val_loss = report_.val_loss = evaluation.loss;
      observer_.evaluated(result.step, evaluation);
    }
    metrics_->append(result, exposed, val_loss);
  }
}

void Loop::finish() {
  trainer_->commit();
  finish_save();
  trace_->write(run_.trace());
  const Trainer& trainer = *trainer_;
  report_.steps = step_seconds_.size();
  report_.last_step = trainer.state().step;
  report_.skipped = trainer.state().skipped;
  report_.interrupted = trainer.state().step < steps_;
  report_.predicted_step_seconds = prediction_.step_seconds;
  report_.measured_step_seconds = median(step_seconds_);
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
  train_steps();
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
