#include "runtime/engine/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "cpu_adam/gradient_norm.hpp"
#include "runtime/base/error.hpp"
#include "runtime/config/schedule.hpp"
#include "runtime/engine/machine/compute_device.hpp"
#include "runtime/plan/placement/boundaries.hpp"

namespace spillway::engine {

namespace {

/// Steps in a row with non-finite gradients after which training has failed, not stumbled.
constexpr std::uint32_t kMostSkipsInARow = 10;

}  // namespace

Trainer::Trainer(const model::ModelConfig& config, const config::TrainOptions& options,
                 const plan::Placement& placement, const plan::Budgets& budgets, ModelRuntime model,
                 plan::Workload workload, const nvme_swap::StoreOptions& store_options, bool resume,
                 std::size_t update_prefetch)
    : config_(config),
      options_(options),
      workload_(std::move(workload)),
      placement_(placement),
      model_(std::move(model)),
      slots_(workload_, placement_) {
  const cpu_adam::Isa isa = options_.isa.value_or(cpu_adam::best_isa());
  backend_ = make_backend(options_, budgets, &wake_);
  streams_ = std::make_unique<Streams>(*backend_);
  model_.ops->bind_stream(streams_->compute->native());
  device_math_ = make_device_math(options_, *streams_->compute);
  constants_ = {*model_.transformer, *backend_, *streams_->upload};
  memory_ = std::make_unique<Memory>(plan::make_pools(workload_, placement_), *backend_);

  nvme_swap::StoreOptions opened = store_options;
  opened.wake = &wake_;
  if (placement_.any_state(plan::Tier::nvme)) {
    opened.buffers = {memory_->all_host(plan::PoolKind::state_staging)};
  }
  store_ = resume ? nvme_swap::TileStore::open(opened)
                  : nvme_swap::TileStore::create(opened, slots_.store_layout());
  check_tiles(store_->layout());
  open_activation_store(store_options);

  workers_ = std::make_unique<cpu_adam::WorkerPool>(
      cpu_adam::WorkerPoolOptions{.threads = options_.threads, .wake = &wake_});
  actions_ = std::make_unique<OpActions>(
      OpResources{.workload = workload_,
                  .placement = placement_,
                  .memory = *memory_,
                  .slots = slots_,
                  .transformer = *model_.transformer,
                  .device_math = *device_math_,
                  .workers = *workers_,
                  .store = *store_,
                  .activation_store = activation_store_.get(),
                  .isa = isa,
                  .kernel = update_kernel(options_, workload_),
                  .update_prefetch = update_prefetch,
                  .decayed = decayed_parameters(model_.transformer->layout(), options_.decay)});
  state_io_ =
      std::make_unique<StateIo>(workload_, placement_, *memory_, slots_, *streams_, *store_, isa);

  prepare_plans();
  state_.loss_scale =
      config::initial_loss_scale(options_.loss_scale, options_.compute == DType::fp16);
  if (resume) {
    check(store_->committed().has_value(), ErrorCode::invalid_argument,
          "the run has no committed step to resume from");
    state_ = decode(store_->committed()->payload);
    committed_step_ = state_.step;
    state_io_->restore();
  }
}

Trainer::~Trainer() = default;

void Trainer::prepare_plans() {
  step_plan_ = plan::build_training_step(workload_, placement_);
  recorded_plan_ = plan::build_recorded_step(workload_, placement_);
  flush_plan_ = plan::build_flush(workload_, placement_);
  evaluation_plan_ = plan::build_evaluation(workload_, placement_);
  snapshot_plan_ = plan::build_snapshot(workload_, placement_);
  const auto prepare = [&](const plan::StepPlan& plan) {
    return std::make_unique<Executor>(plan, *backend_, *streams_, wake_);
  };
  step_executor_ = prepare(step_plan_);
  recorded_executor_ = prepare(recorded_plan_);
  last_executor_ = step_executor_.get();
  flush_executor_ = prepare(flush_plan_);
  evaluation_executor_ = prepare(evaluation_plan_);
  snapshot_executor_ = prepare(snapshot_plan_);
}

bool Trainer::commits_in_step() const {
  return !placement_.any_state(plan::Tier::device) && !placement_.any_state(plan::Tier::host);
}

bool Trainer::commits_next() const {
  const bool due = placement_.commits && state_.step > 0 &&
                   state_.step % std::max<std::uint64_t>(options_.commit_every, 1) == 0;
  return (due || copying()) && committed_step_ != state_.step;
}

bool Trainer::commits_to_evaluate() const {
  return commits_in_step() && copying() && pending_.pending && committed_step_ != state_.step;
}

/// An error in the middle of a plan leaves some tiles updated and some not.
void Trainer::run(Executor& executor) {
  sound_ = false;
  executor.run(*actions_);
  sound_ = true;
}

/// One slot a boundary and never a commit: a write takes the place of the one before.
void Trainer::open_activation_store(const nvme_swap::StoreOptions& options) {
  const Bytes each = plan::boundary_disk_bytes(workload_);
  const Bytes all = memory_->pool(plan::PoolKind::disk_boundaries).bytes();
  if (all == Bytes{}) return;
  const nvme_swap::StoreLayout layout{.tiles = std::vector<Bytes>(all / each, each)};
  nvme_swap::StoreOptions scratch = options;
  scratch.name = "activations";
  scratch.slots = 1;
  scratch.remove_on_close = true;
  scratch.wake = &wake_;
  scratch.buffers = {memory_->all_host(plan::PoolKind::boundary_staging)};
  activation_store_ = nvme_swap::TileStore::create(scratch, layout);
}

void Trainer::check_tiles(const nvme_swap::StoreLayout& layout) const {
  check(layout.tiles == slots_.store_layout().tiles, ErrorCode::corrupt_data,
        "the run's state was written with another model, tile size or state format");
}

void Trainer::initialize(const model::ParameterSource& source) { state_io_->initialize(source); }

nvme_swap::TileRead Trainer::adopt(const nvme_swap::CommittedTiles& source) {
  check_tiles(source.layout());
  if (const auto result = state_io_->adopt(source); result == nvme_swap::TileRead::moved_on) {
    return result;
  }
  state_ = decode(source.commit().payload);
  commit();
  return nvme_swap::TileRead::whole;
}

void Trainer::copy_next(const nvme_swap::StoreOptions& options) {
  nvme_swap::StoreOptions created = options;
  created.wake = &wake_;
  copy_ = nvme_swap::TileStore::create(created, slots_.store_layout());
}

void Trainer::copy_committed() {
  actions_->forget_staged();
  state_io_->copy_committed(*copy_);
  copy_.reset();
}

void Trainer::read_masters(std::uint32_t block, std::span<float> masters) {
  flush(false);
  actions_->forget_staged();
  state_io_->read_masters(block, masters);
}

void Trainer::fetch(const data::TokenFile& tokens, const data::Sampler& sampler) {
  std::uint64_t cursor = state_.cursor;
  for (std::uint32_t round = 0; round < workload_.rounds; ++round) {
    for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
      const data::MicroBatch batch = host_batch(round, m);
      for (std::size_t row = 0; row < batch.rows(); ++row) {
        data::read_window(tokens, sampler.first_token(cursor++), batch, row);
      }
    }
  }
}

data::MicroBatch Trainer::host_batch(std::uint32_t round, std::uint32_t m) const {
  const std::span<std::byte> bytes =
      memory_->host({plan::PoolKind::host_tokens, round * workload_.micro_batches + m});
  const std::span tokens{reinterpret_cast<std::int32_t*>(bytes.data()),
                         bytes.size() / sizeof(std::int32_t)};
  return {tokens, options_.context, config_.vocab_size};
}

/// `writes_all`: the plan that is about to run writes every tile, if an update is pending.
void Trainer::prepare_commit(bool due, bool writes_all) {
  OpActions::Step& step = actions_->step();
  step.update = pending_;
  step.commit_due = due && committed_step_ != state_.step;
  step.copy = writes_all && (pending_.pending || !placement_.any_state(plan::Tier::nvme))
                  ? copy_.get()
                  : nullptr;
  step.commit.step = StepIndex{state_.step};
  encode(state_, step.commit.payload);
}

void Trainer::finish_commit() {
  OpActions::Step& step = actions_->step();
  if (step.commit_due) committed_step_ = state_.step;
  if (std::exchange(step.copy, nullptr) != nullptr) copy_.reset();
  pending_.pending = false;
}

StepResult Trainer::step(const data::TokenFile& tokens, const data::Sampler& sampler) {
  const auto begin = std::chrono::steady_clock::now();
  fetch(tokens, sampler);
  StepResult result;
  result.tokens = workload_.tokens * workload_.micro_batches * workload_.rounds;
  result.scale = state_.loss_scale.scale;

  OpActions::Step& step = actions_->step();
  step.loss_gradient_scale = static_cast<float>(result.scale / static_cast<double>(result.tokens));
  // Inside this plan the previous step's update lands, and with it that step becomes committable.
  prepare_commit(commits_next(), true);
  const bool records = (step.commit_due || copying()) && !commits_in_step();
  Executor& executor = records ? *recorded_executor_ : *step_executor_;
  run(executor);
  last_executor_ = &executor;
  finish_commit();
  if (copying()) copy_committed();

  result.loss = reduce_loss() / static_cast<double>(result.tokens);
  result.grad_norm = reduce_norm() / result.scale;
  state_.cursor += std::uint64_t{options_.micro_batch} * options_.gradient_accumulation_steps;
  result.step = ++state_.step;
  decide(result);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

std::span<double> Trainer::host_losses() const {
  // Behind the leaves of all tiles.
  const auto tiles = static_cast<std::uint32_t>(slots_.tiles().size());
  const std::span<std::byte> bytes = memory_->host({plan::PoolKind::host_sums, tiles});
  return {reinterpret_cast<double*>(bytes.data()), bytes.size() / sizeof(double)};
}

double Trainer::reduce_loss() {
  const std::span<double> sums = host_losses();
  const auto passes = static_cast<std::uint32_t>(sums.size());
  streams_->compute->download(std::as_writable_bytes(sums),
                              memory_->device({plan::PoolKind::device_losses, 0, passes}));
  streams_->compute->synchronize();
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

double Trainer::reduce_norm() {
  double total = 0;
  for (std::uint32_t block = 0; block < workload_.blocks.size(); ++block) {
    const std::span<std::byte> bytes =
        memory_->host(slots_.tiles_of(plan::PoolKind::host_sums, block));
    if (placement_.blocks[block].state == plan::Tier::device) {
      streams_->compute->download(
          bytes, memory_->device(slots_.tiles_of(plan::PoolKind::device_leaves, block)));
      streams_->compute->synchronize();
    }
    total += cpu_adam::sum_leaves(
        {reinterpret_cast<const double*>(bytes.data()), bytes.size() / sizeof(double)});
  }
  return std::sqrt(total);
}

/// Of a step with a gradient that is not finite: its update is skipped, and the loss scale falls.
void Trainer::skip(StepResult& result) {
  result.skipped = true;
  ++state_.skipped;
  ++state_.skipped_in_a_row;
  bool scales_down = false;
  if (options_.compute == DType::fp16) {
    if (config::is_at_minimum(options_.loss_scale, state_.loss_scale)) {
      result.diverged = fmt::format(
          "step {}: gradients overflow at the least loss scale, fp16.min_loss_scale {} "
          "(loss {}); lower the learning rate, or resume from an earlier checkpoint",
          result.step, options_.loss_scale.minimum, result.loss);
      return;
    }
    state_.loss_scale = config::next_loss_scale(options_.loss_scale, state_.loss_scale, false);
    scales_down = state_.loss_scale.hysteresis_left > 0;  // until it is at its minimum
  }
  if (state_.skipped_in_a_row < kMostSkipsInARow || scales_down) return;
  result.diverged = fmt::format(
      "step {}: {} steps in a row had non-finite gradients (loss {}, loss scale {}); "
      "lower the learning rate, or resume from an earlier checkpoint",
      result.step, state_.skipped_in_a_row, result.loss, result.scale);
}

/// With the norm known: apply, clip or skip. The update itself runs at the head of the next plan.
void Trainer::decide(StepResult& result) {
  const std::uint64_t t = state_.updates + 1;
  result.lr = config::learning_rate(options_.schedule, t);
  if (!std::isfinite(result.grad_norm)) {
    skip(result);
    return;
  }
  if (options_.compute == DType::fp16) {
    state_.loss_scale = config::next_loss_scale(options_.loss_scale, state_.loss_scale, true);
  }
  state_.skipped_in_a_row = 0;
  state_.updates = t;
  // As torch.nn.utils.clip_grad_norm_: the factor is clip / (norm + 1e-6), never above 1.
  const double clip = options_.gradient_clipping > 0
                          ? std::min(1.0, options_.gradient_clipping / (result.grad_norm + 1e-6))
                          : 1.0;
  cpu_adam::AdamOptions adam = options_.adam;
  adam.lr = result.lr;
  const bool has_betas =
      adam.optimizer == cpu_adam::Optimizer::adam || adam.optimizer == cpu_adam::Optimizer::lion;
  if (const auto momentum = config::first_momentum(options_.schedule, t); momentum && has_betas) {
    adam.beta1 = *momentum;
    adam.beta2 = config::kOneCycleBeta2;
  }
  adam.rounding_seed = options_.seed;
  pending_.decayed = cpu_adam::make_scalars(adam, t, clip / result.scale);
  adam.weight_decay = 0;
  pending_.plain = cpu_adam::make_scalars(adam, t, clip / result.scale);
  pending_.pending = true;
}

void Trainer::flush(bool commit) {
  prepare_commit((commit && commits_in_step()) || commits_to_evaluate(), commits_in_step());
  run(*flush_executor_);
  finish_commit();
}

void Trainer::snapshot() {
  prepare_commit(true, !placement_.any_state(plan::Tier::nvme));
  if (!actions_->step().commit_due && actions_->step().copy == nullptr) return;
  run(*snapshot_executor_);
  finish_commit();
}

void Trainer::commit() {
  flush(placement_.commits);
  if (!placement_.commits) return;
  if (!commits_in_step()) snapshot();
  if (copying()) copy_committed();
}

Evaluation Trainer::evaluate(const data::TokenFile& tokens) {
  check(tokens.size() > options_.context, ErrorCode::invalid_argument,
        fmt::format("the evaluation file holds {} tokens, fewer than one window of {} and its "
                    "targets",
                    tokens.size(), options_.context));
  flush(false);
  const std::uint64_t windows = data::window_count(tokens, options_.context);
  const std::uint64_t at_once = std::uint64_t{options_.micro_batch} * workload_.micro_batches;
  Evaluation evaluation;
  double sum = 0;
  const std::span<double> sums = host_losses().first(workload_.micro_batches);
  for (std::uint64_t first = 0; first < windows; first += at_once) {
    for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
      data::read_windows(tokens, first + std::uint64_t{m} * options_.micro_batch, host_batch(0, m));
    }
    run(*evaluation_executor_);
    reduce_loss();
    for (const double loss : sums) sum += loss;
  }
  evaluation.tokens = windows * options_.context;
  evaluation.loss = sum / static_cast<double>(evaluation.tokens);
  return evaluation;
}

}  // namespace spillway::engine
