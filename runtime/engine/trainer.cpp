#include "runtime/engine/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "cpu_adam/gradient_norm.hpp"
#include "runtime/base/error.hpp"
#include "runtime/config/schedule.hpp"

namespace spillway::engine {

Trainer::Trainer(const EngineSetup& setup, ModelRuntime model)
    : model_(std::move(model)),
      engine_(setup, model_),
      state_io_(workload(), placement(), engine_.memory(), slots(), engine_.streams(),
                engine_.store(), options().isa.value_or(cpu_adam::best_isa())),
      step_executor_(engine_.prepare(plan::build_training_step(workload(), placement()))),
      recorded_executor_(engine_.prepare(plan::build_recorded_step(workload(), placement()))),
      flush_executor_(engine_.prepare(plan::build_flush(workload(), placement()))),
      evaluation_executor_(engine_.prepare(plan::build_evaluation(workload(), placement()))),
      snapshot_executor_(engine_.prepare(plan::build_snapshot(workload(), placement()))),
      last_executor_(step_executor_.get()) {
  check_tiles(store().layout());
  state_.loss_scale =
      config::initial_loss_scale(options().loss_scale, options().compute == DType::fp16);
  if (engine_.setup().start == Start::anew) return;
  check(store().committed().has_value(), ErrorCode::invalid_argument,
        "the run has no committed step to resume from");
  state_ = decode(store().committed()->payload);
  committed_step_ = state_.step;
  state_io_.restore();
}

Trainer::~Trainer() = default;

bool Trainer::commits_in_step() const {
  return !placement().any_state(plan::Tier::device) && !placement().any_state(plan::Tier::host);
}

bool Trainer::commits_next() const {
  const bool due = placement().commits && state_.step > 0 &&
                   state_.step % std::max<std::uint64_t>(options().commit_every, 1) == 0;
  return (due || copying()) && committed_step_ != state_.step;
}

bool Trainer::commits_to_evaluate() const {
  return commits_in_step() && copying() && pending_.pending && committed_step_ != state_.step;
}

/// An error in the middle of a plan leaves some tiles updated and some not.
void Trainer::run(Executor& executor) {
  sound_ = false;
  executor.run(engine_.actions());
  sound_ = true;
}

void Trainer::check_tiles(const nvme_swap::StoreLayout& layout) const {
  check(layout.tiles == slots().store_layout().tiles, ErrorCode::corrupt_data,
        "the run's state was written with another model, tile size or state format");
}

void Trainer::initialize(const model::ParameterSource& source) { state_io_.initialize(source); }

nvme_swap::TileRead Trainer::adopt(const nvme_swap::CommittedTiles& source) {
  check_tiles(source.layout());
  if (const auto result = state_io_.adopt(source); result == nvme_swap::TileRead::moved_on) {
    return result;
  }
  state_ = decode(source.commit().payload);
  commit();
  return nvme_swap::TileRead::whole;
}

void Trainer::copy_next(const nvme_swap::StoreOptions& options) {
  nvme_swap::StoreOptions created = options;
  created.wake = &engine_.wake();
  copy_ = nvme_swap::TileStore::create(created, slots().store_layout());
}

void Trainer::copy_committed() {
  engine_.actions().forget_staged();
  state_io_.copy_committed(*copy_);
  copy_.reset();
}

void Trainer::read_masters(std::uint32_t block, std::span<float> masters) {
  flush(Commits::no);
  engine_.actions().forget_staged();
  state_io_.read_masters(block, masters);
}

void Trainer::fetch(const data::TokenFile& tokens, const data::Sampler& sampler) {
  std::uint64_t cursor = state_.cursor;
  for (std::uint32_t round = 0; round < workload().rounds; ++round) {
    for (std::uint32_t m = 0; m < workload().micro_batches; ++m) {
      const data::MicroBatch batch = engine_.batch(round * workload().micro_batches + m);
      for (std::size_t row = 0; row < batch.rows(); ++row) {
        data::read_window(tokens, sampler.first_token(cursor++), batch, row);
      }
    }
  }
}

/// `writes`: by the plan that is about to run.
void Trainer::prepare_commit(Commits commits, Writes writes) {
  OpActions::Step& step = engine_.actions().step();
  step.update = pending_;
  step.commit_due = commits == Commits::yes && committed_step_ != state_.step;
  const bool complete =
      writes == Writes::all && (pending_.pending || !placement().any_state(plan::Tier::nvme));
  step.copy = complete ? copy_.get() : nullptr;
  step.commit.step = StepIndex{state_.step};
  encode(state_, step.commit.payload);
}

void Trainer::finish_commit() {
  OpActions::Step& step = engine_.actions().step();
  if (step.commit_due) committed_step_ = state_.step;
  if (std::exchange(step.copy, nullptr) != nullptr) copy_.reset();
  pending_.pending = false;
}

StepResult Trainer::step(const data::TokenFile& tokens, const data::Sampler& sampler) {
  const auto begin = std::chrono::steady_clock::now();
  fetch(tokens, sampler);
  StepResult result;
  result.tokens = workload().tokens * workload().micro_batches * workload().rounds;
  result.scale = state_.loss_scale.scale;

  OpActions::Step& step = engine_.actions().step();
  step.loss_gradient_scale = static_cast<float>(result.scale / static_cast<double>(result.tokens));
  // Inside this plan the previous step's update lands, and with it that step becomes committable.
  prepare_commit(commits_next() ? Commits::yes : Commits::no, Writes::all);
  const bool records = (step.commit_due || copying()) && !commits_in_step();
  Executor& executor = records ? *recorded_executor_ : *step_executor_;
  run(executor);
  last_executor_ = &executor;
  finish_commit();
  if (copying()) copy_committed();

  for (const double loss : engine_.losses()) result.loss += loss;
  result.loss /= static_cast<double>(result.tokens);
  result.grad_norm = reduce_norm() / result.scale;
  state_.cursor += std::uint64_t{options().micro_batch} * options().gradient_accumulation_steps;
  result.step = ++state_.step;
  pending_ = decide_update(options(), state_, result);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

double Trainer::reduce_norm() {
  double total = 0;
  for (std::uint32_t block = 0; block < workload().blocks.size(); ++block) {
    const std::span<std::byte> bytes =
        engine_.memory().host(slots().tiles_of(plan::PoolKind::host_sums, block));
    if (placement().blocks[block].state == plan::Tier::device) {
      engine_.streams().compute->download(
          bytes, engine_.memory().device(slots().tiles_of(plan::PoolKind::device_leaves, block)));
      engine_.streams().compute->synchronize();
    }
    total += cpu_adam::sum_leaves(
        {reinterpret_cast<const double*>(bytes.data()), bytes.size() / sizeof(double)});
  }
  return std::sqrt(total);
}

void Trainer::flush(Commits commits) {
  const bool in_step = commits_in_step();
  const bool due = (commits == Commits::yes && in_step) || commits_to_evaluate();
  prepare_commit(due ? Commits::yes : Commits::no, in_step ? Writes::all : Writes::some);
  run(*flush_executor_);
  finish_commit();
}

void Trainer::snapshot() {
  prepare_commit(Commits::yes,
                 placement().any_state(plan::Tier::nvme) ? Writes::some : Writes::all);
  if (!engine_.actions().step().commit_due && engine_.actions().step().copy == nullptr) return;
  run(*snapshot_executor_);
  finish_commit();
}

void Trainer::commit() {
  flush(placement().commits ? Commits::yes : Commits::no);
  if (!placement().commits) return;
  if (!commits_in_step()) snapshot();
  if (copying()) copy_committed();
}

Evaluation Trainer::evaluate(const data::TokenFile& tokens) {
  flush(Commits::no);
  sound_ = false;
  const Evaluation evaluation = engine::evaluate(engine_, *evaluation_executor_, tokens);
  sound_ = true;
  return evaluation;
}

}  // namespace spillway::engine
