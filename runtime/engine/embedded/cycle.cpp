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

EngineSetup make_setup(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                       ExternalFramework& framework) {
  EngineSetup setup;
  setup.options = train_options(options);
  setup.workload = layout.workload;
  setup.placement = embedded_placement(options, layout);
  setup.groups = layout.groups;
  setup.framework = &framework;
  const EmbeddedNeeds needs = needs_of(options, layout, setup.placement);
  check_memory(options, needs);
  setup.budgets = needs.total();
  setup.store_options.adapt = options.adapt;  // which copies of the state have too
  if (!options.nvme.empty()) {
    setup.store_options.directories = options.nvme;
    setup.store_options.owner = random_run_id();
    setup.store_options.remove_on_close = true;
    setup.store_options.lock_patience = kLockPatience;
  }
  return setup;
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
    : StepCycle(make_setup(options, layout, framework), ModelRuntime{}),
      layout_(layout),
      values_(engine()),
      parameters_(engine(), values_, layout),
      updates_(layout.ranges.size()) {
  for (const ParameterRange& range : layout.ranges) values_.clear_padding(range);
  std::size_t ops = most_ops();
  if (workload().streams_external) {
    backward_ = engine().prepare(plan::build_external_backward(workload(), placement()));
    norms_ = engine().prepare(plan::build_external_norms(workload(), placement()));
    ops = std::max({ops, backward_->plan().ops.size(), norms_->plan().ops.size()});
  }
  if (options.traces) record_.trace(ops + copies_of_step(options, layout));
}

void EmbeddedCycle::run(EmbeddedPlan plan) {
  if (offload::SharedDevice* device = values_.shared()) device->bind_thread();
  parameters_.unstage();
  switch (plan) {
    case EmbeddedPlan::step: run_step(); break;
    case EmbeddedPlan::backward: StepCycle::run(*backward_); break;
    case EmbeddedPlan::norms: StepCycle::run(*norms_); break;
    case EmbeddedPlan::update: flush(Commits::no); break;
  }
  record_.note(plan, last_run(), actions());
}

std::span<const double> EmbeddedCycle::leaf_sums(const ParameterRange& range) {
  const std::uint64_t count = round_up(range.count, kLeafParameters) / kLeafParameters;
  return norm_leaves(range.block).subspan(range.first / kLeafParameters, count);
}

void EmbeddedCycle::save(const std::filesystem::path& directory) {
  parameters_.settle();
  copy_now(checkpoint_store(directory));
}

std::unique_ptr<SavedState> EmbeddedCycle::open_checkpoint(const std::filesystem::path& directory) {
  SavedShape shape{.format = placement().format, .tile_parameters = placement().tile_parameters};
  for (const plan::BlockShape& block : workload().blocks) {
    shape.blocks.push_back(block.padded_parameters);
  }
  auto saved = std::make_unique<SavedState>(
      shape, std::vector<nvme_swap::StoreOptions>{checkpoint_store(directory)});
  saved->verify();
  return saved;
}

void EmbeddedCycle::load(const SavedState& saved, std::span<const std::uint64_t> updates) {
  parameters_.begin_replacement();
  state_io().adopt(saved);
  state_ = saved.state();
  set_updates(state_.updates);
  for (std::uint32_t i = 0; i < updates.size(); ++i) set_updates(i, updates[i]);
  parameters_.end_replacement();
}

}  // namespace spillway::engine
