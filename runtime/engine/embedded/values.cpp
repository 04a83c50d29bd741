#include "runtime/engine/embedded/values.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::engine {

EmbeddedValues::EmbeddedValues(StepEngine& engine)
    : engine_(engine),
      shared_(engine.backend().shared()),
      foreign_(engine.backend().make_event()) {}

bool EmbeddedValues::is_resident(const ParameterRange& range) const {
  return engine_.placement().blocks[range.block].resident();
}

std::span<std::byte> EmbeddedValues::host(const ParameterRange& range) {
  const std::size_t size = size_of(engine_.workload().compute);
  return engine_.memory()
      .host(engine_.slots().tiles_of(plan::PoolKind::host_parameters, range.block))
      .subspan(range.first * size, range.count * size);
}

offload::DeviceSpan<std::byte> EmbeddedValues::resident(const ParameterRange& range) {
  const std::size_t size = size_of(engine_.workload().compute);
  return engine_.memory()
      .device(engine_.slots().tiles_of(plan::PoolKind::resident_parameters, range.block))
      .subspan(range.first * size, range.count * size);
}

std::span<std::byte> EmbeddedValues::kept(const ParameterRange& range) {
  if (!is_resident(range)) return host(range);
  const offload::DeviceSpan<std::byte> values = resident(range);
  return {values.address(), values.size()};
}

std::span<std::byte> EmbeddedValues::frozen(const FrozenRange& range) {
  if (range.block) {
    return engine_.memory()
        .host({plan::PoolKind::host_frozen, *range.block})
        .subspan(range.first, range.bytes);
  }
  const auto all = engine_.memory().device({plan::PoolKind::resident_frozen});
  return {all.address() + range.first, range.bytes};
}

std::span<std::byte> EmbeddedValues::gradient(const ParameterRange& range) {
  const std::size_t size = size_of(plan::waiting_gradient_dtype(engine_.workload()));
  return engine_.memory()
      .host(engine_.slots().tiles_of(plan::PoolKind::host_gradients, range.block))
      .subspan(range.first * size, range.count * size);
}

void EmbeddedValues::download(const ParameterRange& range) {
  offload::Stream& stream = *engine_.streams().download;
  stream.download(host(range), resident(range));
  stream.synchronize();
}

void EmbeddedValues::upload(const ParameterRange& range) {
  offload::Stream& stream = *engine_.streams().upload;
  stream.upload(resident(range), host(range));
  stream.synchronize();
}

void EmbeddedValues::write_frozen(const FrozenRange& range, std::span<const std::byte> values) {
  if (range.block) {
    std::ranges::copy(values, frozen(range).begin());
    return;
  }
  const auto target =
      engine_.memory().device({plan::PoolKind::resident_frozen}).subspan(range.first, range.bytes);
  // In pieces through memory that nothing else needs before the first step.
  const std::span<std::byte> staging = engine_.memory().all_host(plan::PoolKind::state_staging);
  offload::Stream& stream = *engine_.streams().upload;
  for (std::size_t first = 0; first < values.size(); first += staging.size()) {
    const auto part = values.subspan(first, std::min(staging.size(), values.size() - first));
    std::ranges::copy(part, staging.begin());
    stream.upload(target.subspan(first, part.size()), staging.first(part.size()));
    stream.synchronize();
  }
}

void EmbeddedValues::clear_padding(const ParameterRange& range) {
  const std::uint64_t end = range.first + range.count;
  std::ranges::fill(
      gradient({.block = range.block, .first = end, .count = round_up(end, kLeafParameters) - end}),
      std::byte{});
}

void EmbeddedValues::order_uploads(const offload::ForeignWork& work) {
  order(*engine_.streams().upload, work);
}

void EmbeddedValues::order_downloads(const offload::ForeignWork& work) {
  order(*engine_.streams().download, work);
}

void EmbeddedValues::order(offload::Stream& stream, const offload::ForeignWork& work) {
  if (work.kind == offload::ForeignWork::Kind::none) return;
  check(shared_ != nullptr, ErrorCode::invalid_argument,
        "a stream or an event of a GPU is given, and the trainer's device is the host; make it for "
        "cuda, or give none");
  shared_->record_behind(work, *foreign_);
  stream.wait(*foreign_);
}

EndedMemory EmbeddedValues::take_memory() noexcept {
  Memory& memory = engine_.memory();
  taken_->device = {memory.take_device(plan::PoolKind::resident_parameters),
                    memory.take_device(plan::PoolKind::resident_frozen)};
  taken_->host = {memory.take_host(plan::PoolKind::host_parameters),
                  memory.take_host(plan::PoolKind::host_frozen)};
  taken_->backend = engine_.take_backend();
  taken_units_->slots = {memory.take_device(plan::PoolKind::parameter_slots),
                         memory.take_device(plan::PoolKind::frozen_slots)};
  taken_units_->values = taken_;
  return {.values = std::move(taken_), .units = std::move(taken_units_)};
}

}  // namespace spillway::engine
