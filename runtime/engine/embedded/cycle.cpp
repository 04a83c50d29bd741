#include "runtime/engine/embedded/cycle.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/gradient_copies.hpp"
#include "runtime/engine/embedded/needs.hpp"

namespace spillway::engine {
namespace {

constexpr const char* kCheckpointName = "state";
/// A process that was killed is gone by then; one that trains is not.
constexpr std::chrono::milliseconds kLockPatience{1'000};

nvme_swap::StoreOptions state_store(const EmbeddedOptions& options) {
  nvme_swap::StoreOptions store;
  store.adapt = options.adapt;  // which copies of the state have too
  if (options.nvme.empty()) return store;
  store.directories = options.nvme;
  store.owner = random_run_id();
  store.remove_on_close = true;
  store.lock_patience = kLockPatience;
  return store;
}

EngineSetup make_setup(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                       ExternalFramework& framework) {
  const plan::Placement placement = embedded_placement(options, layout);
  const EmbeddedNeeds needs = needs_of(options, layout, placement);
  check_memory(options, needs);
  return {.work = {.config = {},
                   .options = train_options(options),
                   .workload = layout.workload,
                   .budgets = needs.total(),
                   .placement = placement},
          .store = {.options = state_store(options)},
          .foreign = ForeignPasses{.framework = framework, .groups = layout.groups}};
}

nvme_swap::StoreOptions checkpoint_store(const std::filesystem::path& directory) {
  nvme_swap::StoreOptions options;
  options.directories = {directory};
  options.name = kCheckpointName;
  options.slots = 1;
  return options;
}

}  // namespace

EmbeddedCycle::EmbeddedCycle(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                             ExternalFramework& framework)
    : layout_(layout),
      engine_(make_setup(options, layout, framework), ModelRuntime{}),
      cycle_(engine_),
      values_(engine_),
      parameters_(engine_, values_, layout),
      updates_(layout.ranges.size()) {
  for (const ParameterRange& range : layout.ranges) values_.clear_padding(range);
  std::size_t ops = cycle_.lists().most_ops();
  if (layout.workload.streams_external) {
    const plan::Placement& placement = engine_.placement();
    backward_ = engine_.prepare(ops_of(EmbeddedPlan::backward, engine_.workload(), placement));
    norms_ = engine_.prepare(ops_of(EmbeddedPlan::norms, engine_.workload(), placement));
    ops = std::max({ops, backward_->plan().ops.size(), norms_->plan().ops.size()});
  }
  if (options.traces) record_.trace(ops + copies_of_step(options, layout));
}

void EmbeddedCycle::run(EmbeddedPlan plan) {
  if (offload::SharedDevice* device = values_.shared()) device->bind_thread();
  parameters_.unstage();
  record_.note(plan, run_lists_of(plan), engine_.actions());
}

/// Returns the executor that has run last.
const Executor& EmbeddedCycle::run_lists_of(EmbeddedPlan plan) {
  switch (plan) {
    case EmbeddedPlan::step: return cycle_.run_step();
    case EmbeddedPlan::backward: return cycle_.run(*backward_);
    case EmbeddedPlan::norms: return cycle_.run(*norms_);
    case EmbeddedPlan::update: return cycle_.flush(Commit::no);
  }
  SPILLWAY_ASSERT(false);
}

std::span<const double> EmbeddedCycle::leaf_sums(const ParameterRange& range) {
  const std::uint64_t count = round_up(range.count, kLeafParameters) / kLeafParameters;
  return engine_.norm_leaves(range.block).subspan(range.first / kLeafParameters, count);
}

void EmbeddedCycle::save(const std::filesystem::path& directory) {
  parameters_.settle();
  cycle_.copy_now(checkpoint_store(directory));
}

std::unique_ptr<SavedState> EmbeddedCycle::open_checkpoint(
    const std::filesystem::path& directory) const {
  const plan::Placement& placement = engine_.placement();
  SavedShape shape{.format = placement.format, .tile_parameters = placement.tile_parameters};
  for (const plan::BlockShape& block : engine_.workload().blocks) {
    shape.blocks.push_back(block.padded_parameters);
  }
  auto saved = std::make_unique<SavedState>(
      shape, std::vector<nvme_swap::StoreOptions>{checkpoint_store(directory)});
  saved->verify();
  return saved;
}

void EmbeddedCycle::load(const SavedState& saved, std::span<const std::uint64_t> updates) {
  parameters_.begin_replacement();
  cycle_.take(saved);
  set_updates(state().updates);
  for (std::uint32_t i = 0; i < updates.size(); ++i) set_updates(i, updates[i]);
  parameters_.end_replacement();
}

}  // namespace spillway::engine
