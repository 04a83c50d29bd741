#include "runtime/engine/embedded/cycle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/gradient_copies.hpp"
#include "runtime/engine/prepare/budgets.hpp"

namespace spillway::engine {
namespace {

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

/// Throws `Error{does_not_fit}` unless the machine has what `setup` takes.
void check_memory(const EmbeddedOptions& options, const EngineSetup& setup) {
  const std::optional<Bytes> free_device = free_memory_of_device(setup.options);
  const MemoryBudget memory = read_memory_budget();
  Bytes host = setup.budgets.host;
  if (free_device) {
    check_fits({.device = setup.budgets.device, .host = {}}, setup.options, memory, free_device,
               "give units to parameters, and device_memory, so that they are streamed");
  } else {
    host += setup.budgets.device;  // what is the device is memory of the host
  }
  check_fits({.device = {}, .host = host}, setup.options, memory, std::nullopt,
             options.nvme.empty() ? "keep optimizer state on disk, or in a shorter format"
                                  : "use a smaller tile, or train fewer parameters");
}

EngineSetup make_setup(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                       ForeignPasses& passes) {
  EngineSetup setup;
  setup.options = train_options(options);
  setup.workload = layout.workload;
  setup.placement = embedded_placement(options, layout);
  setup.groups = layout.groups;
  setup.passes = &passes;
  const auto items = plan::memory_items(setup.workload, setup.placement);
  setup.budgets.host = plan::total(items, plan::Tier::host) + landing_bytes(options, layout);
  setup.budgets.device = plan::total(items, plan::Tier::device);
  check_memory(options, setup);
  setup.store_options.adapt = options.adapt;  // which copies of the state have too
  if (!options.nvme.empty()) {
    setup.store_options.directories = options.nvme;
    setup.store_options.owner = random_run_id();
    setup.store_options.remove_on_close = true;
    setup.store_options.lock_patience = kLockPatience;
  }
  return setup;
}

}  // namespace

EmbeddedCycle::EmbeddedCycle(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                             ForeignPasses& passes)
    : StepCycle(make_setup(options, layout, passes), ModelRuntime{}),
      layout_(layout),
      updates_(layout.places.size()),
      in_order_(layout.places.size()),
      isa_(options.isa.value_or(cpu_adam::best_isa())),
      shared_(engine().backend().shared()),
      foreign_(engine().backend().make_event()) {
  std::iota(in_order_.begin(), in_order_.end(), 0);
  std::ranges::sort(in_order_, {}, [&](std::uint32_t parameter) {
    const EmbeddedPlace& place = layout.places[parameter];
    return std::pair(place.block, place.first);
  });
  for (const EmbeddedPlace& place : layout.places) clear_padding(place);
  std::size_t ops = most_ops();
  if (workload().streams_external) {
    backward_ = engine().prepare(plan::build_external_backward(workload(), placement()));
    norms_ = engine().prepare(plan::build_external_norms(workload(), placement()));
    ops = std::max({ops, backward_->plan().ops.size(), norms_->plan().ops.size()});
  }
  ops += copies_of_step(options, layout);
  if (options.traces) trace_.emplace(ops, StepTrace::Passes::external);
}

void EmbeddedCycle::run(EmbeddedPlan plan) {
  if (shared_ != nullptr) shared_->bind_thread();
  unstage();
  switch (plan) {
    case EmbeddedPlan::step: run_step(); break;
    case EmbeddedPlan::backward: StepCycle::run(*backward_); break;
    case EmbeddedPlan::norms: StepCycle::run(*norms_); break;
    case EmbeddedPlan::update: flush(Commits::no); break;
  }
  note(plan);
}

void EmbeddedCycle::note(EmbeddedPlan plan) {
  const Lock lock(use_mutex_);
  if (trace_) trace_->record(last_run());
  if (begins_step_ && plan != EmbeddedPlan::update) {
    begins_step_ = false;
    use_.busy_seconds = {};
  }
  const std::vector<plan::Op>& ops = last_run().plan().ops;
  for (std::size_t op = 0; op < ops.size(); ++op) {
    if (ops[op].lane == plan::Lane::external) continue;
    const plan::OpTiming& timing = last_run().timings()[op];
    use_.busy_seconds[static_cast<std::size_t>(ops[op].lane)] += timing.end - timing.start;
  }
  use_.busy_seconds[static_cast<std::size_t>(plan::Lane::d2h)] +=
      std::exchange(download_seconds_, 0);
  use_.read = actions().moved(plan::kReadState);
  use_.written = actions().moved(plan::kWriteState);
  use_.uploaded = actions().moved(plan::kUploadParams) + actions().moved(plan::kUploadFrozen);
}

void EmbeddedCycle::note_download(std::uint32_t block, Bytes bytes,
                                  std::chrono::nanoseconds duration) {
  plan::Op op;
  op.kind = plan::OpKind::copy;
  op.lane = plan::Lane::d2h;
  op.copied = plan::kDownloadGrads;
  op.block = block;
  op.bytes = bytes;
  const Lock lock(use_mutex_);
  if (trace_) trace_->record(op, duration);
  use_.downloaded += bytes;
  download_seconds_ += std::chrono::duration<double>(duration).count();
}

std::span<const double> EmbeddedCycle::leaf_sums(const EmbeddedPlace& place) {
  const std::uint64_t count = round_up(place.count, kLeafParameters) / kLeafParameters;
  return norm_leaves(place.block).subspan(place.first / kLeafParameters, count);
}

std::shared_ptr<ParameterMemory> EmbeddedCycle::take_memory() noexcept {
  Memory& memory = engine().memory();
  taken_->device = {memory.take_device(plan::PoolKind::resident_parameters),
                    memory.take_device(plan::PoolKind::resident_frozen)};
  taken_->host = {memory.take_host(plan::PoolKind::host_parameters),
                  memory.take_host(plan::PoolKind::host_frozen)};
  taken_->backend = engine().take_backend();
  return std::move(taken_);
}

std::span<std::byte> EmbeddedCycle::values(const EmbeddedPlace& place) {
  const std::size_t size = size_of(workload().compute);
  return engine()
      .memory()
      .host(slots().tiles_of(plan::PoolKind::host_parameters, place.block))
      .subspan(place.first * size, place.count * size);
}

offload::DeviceSpan<std::byte> EmbeddedCycle::resident_values(const EmbeddedPlace& place) {
  const std::size_t size = size_of(workload().compute);
  return engine()
      .memory()
      .device(slots().tiles_of(plan::PoolKind::resident_parameters, place.block))
      .subspan(place.first * size, place.count * size);
}

void EmbeddedCycle::order(offload::Stream& stream, const offload::ForeignWork& work) {
  if (work.kind == offload::ForeignWork::Kind::none) return;
  check(shared_ != nullptr, ErrorCode::invalid_argument,
        "a stream or an event of a GPU is given, and the trainer's device is the host; make it for "
        "cuda, or give none");
  shared_->record_behind(work, *foreign_);
  stream.wait(*foreign_);
}

void EmbeddedCycle::download_resident(const EmbeddedPlace& place) {
  offload::Stream& stream = *engine().streams().download;
  stream.download(values(place), resident_values(place));
  stream.synchronize();
}

void EmbeddedCycle::upload_resident(const EmbeddedPlace& place) {
  offload::Stream& stream = *engine().streams().upload;
  stream.upload(resident_values(place), values(place));
  stream.synchronize();
}

std::span<std::byte> EmbeddedCycle::frozen(const FrozenPlace& place) {
  if (place.block) {
    return engine()
        .memory()
        .host({plan::PoolKind::host_frozen, *place.block})
        .subspan(place.first, place.bytes);
  }
  const auto all = engine().memory().device({plan::PoolKind::resident_frozen});
  return {all.address() + place.first, place.bytes};
}

void EmbeddedCycle::write_frozen(const FrozenPlace& place, std::span<const std::byte> values) {
  if (place.block) {
    std::ranges::copy(values, frozen(place).begin());
    return;
  }
  const auto target =
      engine().memory().device({plan::PoolKind::resident_frozen}).subspan(place.first, place.bytes);
  // In pieces through memory that nothing else needs before the first step.
  const std::span<std::byte> staging = engine().memory().all_host(plan::PoolKind::state_staging);
  offload::Stream& stream = *engine().streams().upload;
  for (std::size_t first = 0; first < values.size(); first += staging.size()) {
    const auto part = values.subspan(first, std::min(staging.size(), values.size() - first));
    std::ranges::copy(part, staging.begin());
    stream.upload(target.subspan(first, part.size()), staging.first(part.size()));
    stream.synchronize();
  }
}

std::span<std::byte> EmbeddedCycle::gradient(const EmbeddedPlace& place) {
  const std::size_t size = size_of(plan::waiting_gradient_dtype(workload()));
  return engine()
      .memory()
      .host(slots().tiles_of(plan::PoolKind::host_gradients, place.block))
      .subspan(place.first * size, place.count * size);
}

void EmbeddedCycle::clear_padding(const EmbeddedPlace& place) {
  const std::uint64_t end = place.first + place.count;
  std::ranges::fill(
      gradient({.block = place.block, .first = end, .count = round_up(end, kLeafParameters) - end}),
      std::byte{});
}

std::vector<plan::MemoryItem> EmbeddedCycle::memory() const {
  auto items = plan::memory_items(workload(), placement());
  // Slots on disk are there where there is a store.
  const bool stored = engine().store() != nullptr;
  std::erase_if(items, [&](const auto& item) { return !stored && item.tier == plan::Tier::nvme; });
  return items;
}

EmbeddedUse EmbeddedCycle::use() const {
  const Lock lock(use_mutex_);
  return use_;
}

void EmbeddedCycle::write_trace(const std::filesystem::path& path) const {
  check(trace_.has_value(), ErrorCode::invalid_argument,
        "the trainer records no trace: say so in its options (traces)");
  trace_->write(path);
}

}  // namespace spillway::engine
