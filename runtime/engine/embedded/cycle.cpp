#include "runtime/engine/embedded/cycle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/gradient_copies.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/plan/step/step_builder.hpp"

namespace spillway::engine {
namespace {

constexpr const char* kCheckpointName = "state";
/// A process that was killed is gone by then; one that trains is not.
constexpr std::chrono::milliseconds kLockPatience{1'000};

config::TrainOptions train_options(const EmbeddedOptions& options) {
  config::TrainOptions train;
  train.compute = options.dtype;
  train.device = options.device;
  train.state_format = options.state_format;
  train.tile_parameters = options.tile_parameters;
  train.device_index = options.device_index;
  train.nvme = options.nvme;
  train.host_memory = options.host_memory;
  train.threads = options.threads;
  train.isa = options.isa;
  train.seed = options.seed;
  // What lies on disk is no run of its own: whoever trains says when it is saved.
  train.commit_every = std::numeric_limits<std::uint64_t>::max();
  return train;
}

/// Returns the memory that the engine takes. Throws `Error{does_not_fit}` unless the machine has
/// it.
plan::Budgets budgets_of(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                         const plan::Placement& placement, const config::TrainOptions& train) {
  const auto items = plan::memory_items(layout.workload, placement);
  const plan::Budgets budgets{
      .device = plan::total(items, plan::Tier::device),
      .host = plan::total(items, plan::Tier::host) + landing_bytes(options, layout),
      .nvme = {}};
  const std::optional<Bytes> free_device = free_memory_of_device(train);
  const MemoryBudget memory = read_memory_budget();
  Bytes host = budgets.host;
  if (free_device) {
    check_fits({.device = budgets.device, .host = {}}, train, memory, free_device,
               "give units to parameters, and device_memory, so that they are streamed");
  } else {
    host += budgets.device;  // what is the device is memory of the host
  }
  check_fits({.device = {}, .host = host}, train, memory, std::nullopt,
             options.nvme.empty() ? "keep optimizer state on disk, or in a shorter format"
                                  : "use a smaller tile, or train fewer parameters");
  return budgets;
}

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
  const config::TrainOptions train = train_options(options);
  const plan::Placement placement = embedded_placement(options, layout);
  return {.work = {.config = {},
                   .options = train,
                   .workload = layout.workload,
                   .budgets = budgets_of(options, layout, placement, train),
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
    backward_ = engine_.prepare(plan::build_external_backward(engine_.workload(), placement));
    norms_ = engine_.prepare(plan::build_external_norms(engine_.workload(), placement));
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

std::vector<plan::MemoryItem> EmbeddedCycle::memory() const {
  auto items = plan::memory_items(engine_.workload(), engine_.placement());
  // Slots on disk are there where there is a store.
  const bool stored = engine_.store() != nullptr;
  std::erase_if(items, [&](const auto& item) { return !stored && item.tier == plan::Tier::nvme; });
  return items;
}

}  // namespace spillway::engine
