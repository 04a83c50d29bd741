#include "runtime/engine/training/step_cycle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/model/part_map.hpp"

namespace spillway::engine {

StepCycle::StepCycle(const EngineSetup& setup, ModelRuntime model)
    : model_(std::move(model)),
      engine_(setup, model_),
      state_io_(workload(), placement(), engine_.memory(), slots(), engine_.streams(),
                engine_.store(), options().isa.value_or(cpu_adam::best_isa()), engine_.ranks()),
      copy_(engine_, state_io_),
      snapshot_executor_(engine_.prepare(plan::build_snapshot(workload(), placement()))) {
  plan::Workload at = workload();
  for (at.stage.phase = 0; at.stage.phase < at.stage.phases; ++at.stage.phase) {
    Lists& lists = lists_.emplace_back();
    lists.step = engine_.prepare(plan::build_training_step(at, placement()));
    lists.recorded = engine_.prepare(plan::build_recorded_step(at, placement()));
    lists.flush = engine_.prepare(plan::build_flush(at, placement()));
    if (at.stage.stays_full()) lists.fill = engine_.prepare(plan::build_fill(at, placement()));
  }
  last_executor_ = lists_.front().step.get();
  all_commit_in_step_ = !engine_.ranks().any(commits_in_step() ? Vote::no : Vote::yes);
  if (engine_.setup().start == Start::resumed) resume();
}

/// A commit does not hold all that a pipeline which stays full goes on from.
void StepCycle::resume() {
  check(
      !workload().stage.stays_full(), ErrorCode::not_supported,
      "a run with stale weights cannot be resumed: its commits hold the newest weights, and the "
      "next step uses those before them; start a new run --from it, which begins with the newest");
  const auto& committed = engine_.store()->committed();
  check(committed.has_value(), ErrorCode::invalid_argument,
        "the run has no committed step to resume from");
  const SavedPart saved = decode_part(committed->payload);
  const SavedPart now = saved_part_of(workload());
  check(saved.grid == now.grid && saved.rank == now.rank && saved.layers == now.layers,
        ErrorCode::invalid_argument,
        fmt::format("{} holds the state of {}, and this is {}; resume on the same grid of ranks, "
                    "or start a new run from it",
                    engine_.setup().store_options.directories.front().string(), to_text(saved),
                    to_text(now)));
  check(engine_.store()->layout().tiles == slots().store_layout().tiles, ErrorCode::corrupt_data,
        "the run's state was written with another model, tile size, state format or sharding");
  state_ = decode(committed->payload);
  committed_step_ = state_.step;
  state_io_.restore();
  if (!engine_.setup().resume_at) return;
  // No rank gives up a commit before the state of all of them has been read and is sound.
  engine_.ranks().barrier();
  engine_.store()->go_back();
}

bool StepCycle::commits_in_step() const { return placement().all_state_on_disk(); }

bool StepCycle::commits_next() const {
  const bool due = placement().commits && state_.step > 0 &&
                   state_.step % std::max<std::uint64_t>(options().commit_every, 1) == 0;
  return (due || copying()) && committed_step_ != state_.step;
}

bool StepCycle::commits_to_evaluate() const {
  // A stage whose own gradients are finite has an update, also of a step that others skip.
  const bool updates = pending_.pending && state_.skipped_in_a_row == 0;
  return all_commit_in_step_ && copying() && updates && committed_step_ != state_.step;
}

/// An error in the middle of a plan leaves some tiles updated and some not.
void StepCycle::run(Executor& executor) {
  sound_ = false;
  executor.run(engine_.actions());
  sound_ = true;
  last_run_ = &executor;
}

namespace {

/// Returns what of the model a rank of a tensor group has; nothing for one that has all of it.
std::optional<model::PartMap> part_map(const EngineSetup& setup) {
  const plan::TensorGroup& group = setup.workload.tensor;
  if (group.count == 1) return std::nullopt;
  return model::PartMap(setup.config, {.index = group.index, .count = group.count});
}

/// Whether the saved blocks are those of the model that is trained.
bool has_blocks_of(const SavedState& source, const EngineSetup& setup) {
  if (setup.workload.tensor.count > 1) {
    return std::ranges::equal(source.blocks(), model::make_layout(setup.config).blocks,
                              [](ElementCount saved, const model::BlockLayout& b) {
                                return saved == b.padded_parameters;
                              });
  }
  const auto fits = [](ElementCount saved, const plan::BlockShape& block) {
    const bool of_another_stage = block.padded_parameters == ElementCount{};
    return of_another_stage || saved == plan::pad(block.parameters, 1);
  };
  return std::ranges::equal(source.blocks(), setup.workload.blocks, fits);
}

}  // namespace

void StepCycle::initialize(const model::ParameterSource& source) {
  const std::optional<model::PartMap> part = part_map(engine_.setup());
  if (part) return state_io_.initialize(model::PartView(source, *part));
  state_io_.initialize(source);
}

void StepCycle::adopt(const SavedState& source) {
  check(has_blocks_of(source, engine_.setup()), ErrorCode::invalid_argument,
        fmt::format("{} holds the state of another model, or of one in other operator tiles; start "
                    "from it with the model and the spillway.operator_tile that it was saved with",
                    source.folder().string()));
  const std::optional<model::PartMap> part = part_map(engine_.setup());
  state_io_.adopt(source, part ? &*part : nullptr);
  has_versions_ = is_full_ = false;
  state_ = source.state();
  commit();
}

void StepCycle::copy_committed() {
  const auto& committed = engine_.store()->committed();
  SPILLWAY_ASSERT(committed.has_value());
  copy_.fill(*committed);
}

void StepCycle::copy_now(const nvme_swap::StoreOptions& options) {
  flush(Commits::no);
  StepDecisions& step = engine_.actions().decisions();
  try {
    copy_next(options);
    prepare_commit(Commits::no, Writes::all);
    if (step.copy != nullptr) {
      run(*snapshot_executor_);
      return finish_commit();
    }
    copy_.fill(step.commit);
  } catch (...) {
    // Half a copy is of no use: later plans write nothing there.
    step.copy = nullptr;
    copy_.abandon();
    throw;
  }
}

void StepCycle::read_masters(std::uint32_t block, std::span<float> masters) {
  flush(Commits::no);
  engine_.actions().forget_staged();
  state_io_.read_masters(block, masters);
}

/// `writes`: by the plan that is about to run.
void StepCycle::prepare_commit(Commits commits, Writes writes) {
  StepDecisions& step = engine_.actions().decisions();
  step.update = pending_;
  step.commit_due =
      commits == Commits::yes && engine_.store() != nullptr && committed_step_ != state_.step;
  const bool complete =
      writes == Writes::all && (pending_.pending || !placement().any_state(plan::Tier::nvme));
  step.copy = complete ? copy_.store() : nullptr;
  step.commit.step = StepIndex{state_.step};
  encode(state_, workload(), step.commit.payload);
}

void StepCycle::finish_commit() {
  StepDecisions& step = engine_.actions().decisions();
  if (step.commit_due) committed_step_ = state_.step;
  pending_.pending = false;
  if (std::exchange(step.copy, nullptr) != nullptr) copy_.close();
}

/// At first all versions of the weights are the same.
void StepCycle::fill() {
  flush(Commits::no);
  for (Lists& lists : lists_) {
    if (has_versions_) break;
    engine_.actions().decisions().stash_due = true;
    engine_.actions().decisions().commit_due = false;
    run(*lists.flush);
  }
  has_versions_ = true;
  engine_.actions().decisions().stash_due = false;
  run(*lists().fill);
  is_full_ = true;
}

/// Inside this plan the previous step's update lands, and with it that step becomes committable.
void StepCycle::run_step() {
  if (workload().stage.stays_full() && !is_full_) fill();
  prepare_commit(commits_next() ? Commits::yes : Commits::no, Writes::all);
  const bool records =
      (engine_.actions().decisions().commit_due || copying()) && !commits_in_step();
  Executor& executor = records ? *lists().recorded : *lists().step;
  run(executor);
  last_executor_ = &executor;
  finish_commit();
  engine_.actions().decisions().stash_due = true;
  if (copying()) copy_committed();
}

std::span<const double> StepCycle::norm_leaves(std::uint32_t block) {
  const std::span<std::byte> bytes =
      engine_.memory().host(slots().tiles_of(plan::PoolKind::host_leaves, block));
  if (placement().blocks[block].state == plan::Tier::device) {
    engine_.streams().compute->download(
        bytes, engine_.memory().device(slots().tiles_of(plan::PoolKind::device_leaves, block)));
    engine_.streams().compute->synchronize();
  }
  return {reinterpret_cast<const double*>(bytes.data()), bytes.size() / sizeof(double)};
}

void StepCycle::flush(Commits commits) {
  const bool in_step = commits_in_step();
  const bool due = (commits == Commits::yes && in_step) || commits_to_evaluate();
  prepare_commit(due ? Commits::yes : Commits::no, in_step ? Writes::all : Writes::some);
  const bool committed = engine_.actions().decisions().commit_due;
  run(*lists().flush);
  finish_commit();
  engine_.actions().decisions().stash_due = false;
  if (committed) await_all_ranks();
}

/// A step's list is followed by an exchange of sums, in which every rank waits for the others.
/// Other lists have none, so this barrier keeps the previous commit until all ranks have the new
/// one.
void StepCycle::await_all_ranks() { engine_.ranks().barrier(); }

void StepCycle::snapshot() {
  prepare_commit(Commits::yes,
                 placement().any_state(plan::Tier::nvme) ? Writes::some : Writes::all);
  if (!engine_.actions().decisions().commit_due && engine_.actions().decisions().copy == nullptr)
    return;
  const bool committed = engine_.actions().decisions().commit_due;
  run(*snapshot_executor_);
  finish_commit();
  if (committed) await_all_ranks();
}

void StepCycle::commit() {
  flush(placement().commits ? Commits::yes : Commits::no);
  if (!placement().commits) return;
  if (!commits_in_step()) snapshot();
  if (copying()) copy_committed();
}

}  // namespace spillway::engine
