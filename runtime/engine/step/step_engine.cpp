#include "runtime/engine/step/step_engine.hpp"

#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/engine/device/compute_device.hpp"

namespace spillway::engine {
namespace {

/// Binds the model's constants in device memory, which lives as long as the model runs; the host
/// copy lasts no longer than this call.
offload::DeviceMemory make_constants(model::Transformer* transformer,
                                     offload::DeviceBackend& backend, offload::Stream& stream) {
  if (transformer == nullptr) return {};
  const std::vector<float> constants = transformer->constants();
  if (constants.empty()) return {};
  const Bytes bytes = transformer->constant_bytes();
  offload::DeviceMemory memory(backend, bytes);
  const offload::PinnedMemory staging(backend, bytes);
  std::memcpy(staging.host().data(), constants.data(), bytes.value());
  stream.upload(memory.device(), staging.host());
  stream.synchronize();
  transformer->bind_constants(memory.device().as<const float>());
  return memory;
}

std::vector<BlockGroups> groups_of(const EngineSetup& setup, const ModelRuntime& model) {
  if (setup.external) return setup.external->groups;
  SPILLWAY_ASSERT(model.transformer != nullptr);
  return decay_groups(model.transformer->layout(), setup.plan.workload, setup.plan.options.decay);
}

/// Passes that are measured alone exchange nothing, whatever ranks their workload names.
void check_ranks(const EngineSetup& setup, const RankGroups& ranks) {
  if (ranks.alone() && setup.store.options.directories.empty()) return;
  SPILLWAY_ASSERT(ranks.place().grid == setup.plan.workload.grid());
  const bool on_gpus = ranks.gpu(RankGroups::Group::job) != nullptr;
  SPILLWAY_ASSERT(ranks.alone() ||
                  on_gpus == (setup.plan.options.device == config::DeviceKind::cuda));
}

}  // namespace

StepEngine::StepEngine(EngineSetup setup, const ModelRuntime& model,
                       std::optional<plan::Pools> pools)
    : setup_(std::move(setup)),
      ranks_(setup_.ranks == nullptr ? alone_ : *setup_.ranks),
      backend_(make_backend(options(), setup_.plan.budgets, &wake_)),
      streams_(std::make_unique<Streams>(*backend_, ranks_.gpu(RankGroups::Group::job))),
      constants_(make_constants(model.transformer.get(), *backend_, *streams_->upload)),
      device_math_(make_device_math(options(), *streams_->compute)),
      slots_(workload(), placement(), ranks_.place().replica()),
      memory_(std::make_unique<Memory>(
          pools ? std::move(*pools) : plan::make_pools(workload(), placement()), *backend_,
          setup_.shared)) {
  check_ranks(setup_, ranks_);
  if (!ranks_.alone()) ranks_.host(RankGroups::Group::job)->wake_with(&wake_);
  if (model.ops != nullptr) model.ops->bind_stream(streams_->compute->native());
  open_store();
  open_activation_store();
  open_frozen_store();
  workers_ = std::make_unique<cpu_adam::WorkerPool>(
      cpu_adam::WorkerPoolOptions{.threads = options().threads, .wake = &wake_});
  actions_ = std::make_unique<OpActions>(
      OpResources{.workload = workload(),
                  .placement = placement(),
                  .memory = *memory_,
                  .slots = slots_,
                  .transformer = model.transformer.get(),
                  .device_math = *device_math_,
                  .workers = *workers_,
                  .store = store_.get(),
                  .activation_store = activation_store_.get(),
                  .frozen_store = frozen_store_.get(),
                  .isa = isa(),
                  .kernel = update_kernel(options(), workload()),
                  .update_prefetch = setup_.update_prefetch,
                  .groups = groups_of(setup_, model),
                  .framework = setup_.external ? &setup_.external->framework : nullptr,
                  .ranks = ranks_});
}

/// The group of the ranks outlives what it notifies.
StepEngine::~StepEngine() {
  if (!ranks_.alone()) ranks_.host(RankGroups::Group::job)->wake_with(nullptr);
}

void StepEngine::open_store() {
  nvme_swap::StoreOptions& options = setup_.store.options;
  if (options.directories.empty()) return;
  options.wake = &wake_;
  if (placement().any_state(plan::Tier::nvme)) {
    options.buffers = {memory_->all_host(plan::PoolKind::state_staging)};
  }
  if (setup_.store.start == Start::anew) {
    store_ = nvme_swap::TileStore::create(options, slots_.store_layout());
  } else {
    store_ = setup_.store.resume_at
                 ? nvme_swap::TileStore::open_at(options, *setup_.store.resume_at)
                 : nvme_swap::TileStore::open(options);
  }
}

/// One slot a saved tensor and never a commit: a write takes the place of the one before.
void StepEngine::open_activation_store() {
  const nvme_swap::StoreLayout layout{.tiles = activation_tiles(*memory_).tiles()};
  if (layout.tiles.empty()) return;
  nvme_swap::StoreOptions scratch = setup_.store.options;
  scratch.name = "activations";
  scratch.slots = 1;
  scratch.remove_on_close = true;
  scratch.buffers.clear();
  for (const auto pool :
       {plan::PoolKind::boundary_staging, plan::PoolKind::saved_activation_staging}) {
    const std::span<std::byte> staging = memory_->all_host(pool);
    if (!staging.empty()) scratch.buffers.push_back(staging);
  }
  activation_store_ = nvme_swap::TileStore::create(scratch, layout);
}

/// Likewise one slot a block and never a commit: whoever starts again writes all of it.
void StepEngine::open_frozen_store() {
  const nvme_swap::StoreLayout layout{.tiles = frozen_tiles(*memory_).tiles()};
  if (layout.tiles.empty()) return;
  nvme_swap::StoreOptions& options = setup_.external->frozen_store;
  options.name = "frozen";
  options.slots = 1;
  options.remove_on_close = true;
  options.wake = &wake_;
  options.buffers = {memory_->all_host(plan::PoolKind::frozen_staging)};
  frozen_store_ = nvme_swap::TileStore::create(options, layout);
}

data::MicroBatch StepEngine::batch(std::uint32_t pass) const {
  const std::span<std::byte> bytes = memory_->host({plan::PoolKind::host_tokens, pass});
  const std::span tokens{reinterpret_cast<std::int32_t*>(bytes.data()),
                         bytes.size() / sizeof(std::int32_t)};
  return {tokens, options().context, setup_.config.vocab_size};
}

std::span<std::byte> StepEngine::borrow_staging() const {
  actions_->forget_staged();
  return memory_->all_host(plan::PoolKind::state_staging);
}

std::span<const double> StepEngine::losses() {
  const std::span<std::byte> bytes = memory_->host(slots_.losses());
  streams_->compute->download(bytes, memory_->all_device(plan::PoolKind::device_losses));
  streams_->compute->synchronize();
  return {reinterpret_cast<const double*>(bytes.data()), bytes.size() / sizeof(double)};
}

std::span<const double> StepEngine::norm_leaves(std::uint32_t block) {
  const std::span<std::byte> bytes =
      memory_->host(slots_.tiles_of(plan::PoolKind::host_leaves, block));
  if (placement().blocks[block].state == plan::Tier::device) {
    streams_->compute->download(
        bytes, memory_->device(slots_.tiles_of(plan::PoolKind::device_leaves, block)));
    streams_->compute->synchronize();
  }
  return {reinterpret_cast<const double*>(bytes.data()), bytes.size() / sizeof(double)};
}

}  // namespace spillway::engine
