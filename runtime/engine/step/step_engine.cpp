#include "runtime/engine/step/step_engine.hpp"

#include <utility>

#include "runtime/engine/machine/compute_device.hpp"
#include "runtime/engine/prepare/planning.hpp"
#include "runtime/engine/prepare/workload.hpp"

namespace spillway::engine {

StepEngine::StepEngine(EngineSetup setup, const ModelRuntime& model)
    : setup_(std::move(setup)),
      backend_(make_backend(setup_.options, setup_.budgets, &wake_)),
      streams_(std::make_unique<Streams>(*backend_)),
      constants_(*model.transformer, *backend_, *streams_->upload),
      device_math_(make_device_math(setup_.options, *streams_->compute)),
      slots_(setup_.workload, setup_.placement),
      memory_(std::make_unique<Memory>(plan::make_pools(setup_.workload, setup_.placement),
                                       *backend_)) {
  model.ops->bind_stream(streams_->compute->native());
  open_store();
  open_activation_store();
  workers_ = std::make_unique<cpu_adam::WorkerPool>(
      cpu_adam::WorkerPoolOptions{.threads = setup_.options.threads, .wake = &wake_});
  actions_ = std::make_unique<OpActions>(OpResources{
      .workload = setup_.workload,
      .placement = setup_.placement,
      .memory = *memory_,
      .slots = slots_,
      .transformer = *model.transformer,
      .device_math = *device_math_,
      .workers = *workers_,
      .store = store_.get(),
      .activation_store = activation_store_.get(),
      .isa = setup_.options.isa.value_or(cpu_adam::best_isa()),
      .kernel = update_kernel(setup_.options, setup_.workload),
      .update_prefetch = setup_.update_prefetch,
      .decayed = decayed_parameters(model.transformer->layout(), setup_.options.decay)});
}

void StepEngine::open_store() {
  nvme_swap::StoreOptions& options = setup_.store_options;
  if (options.directories.empty()) return;
  options.wake = &wake_;
  if (setup_.placement.any_state(plan::Tier::nvme)) {
    options.buffers = {memory_->all_host(plan::PoolKind::state_staging)};
  }
  store_ = setup_.start == Start::resumed
               ? nvme_swap::TileStore::open(options)
               : nvme_swap::TileStore::create(options, slots_.store_layout());
}

/// One slot a saved tensor and never a commit: a write takes the place of the one before.
void StepEngine::open_activation_store() {
  const nvme_swap::StoreLayout layout{.tiles = ActivationTiles(*memory_).tiles()};
  if (layout.tiles.empty()) return;
  nvme_swap::StoreOptions scratch = setup_.store_options;
  scratch.name = "activations";
  scratch.slots = 1;
  scratch.remove_on_close = true;
  scratch.buffers.clear();
  for (const auto pool : {plan::PoolKind::boundary_staging, plan::PoolKind::kept_staging}) {
    const std::span<std::byte> staging = memory_->all_host(pool);
    if (!staging.empty()) scratch.buffers.push_back(staging);
  }
  activation_store_ = nvme_swap::TileStore::create(scratch, layout);
}

}  // namespace spillway::engine
