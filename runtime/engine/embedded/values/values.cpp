#include "runtime/engine/embedded/values/values.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::engine {

EmbeddedValues::EmbeddedValues(StepEngine& engine)
    : engine_(engine),
      shared_(engine.backend().shared()),
      external_(engine.backend().make_event()),
      frozen_file_(engine) {}

bool EmbeddedValues::is_resident(const ParameterRange& range) const {
  return !released_ && engine_.placement().blocks[range.block].resident();
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
    if (frozen_file_.exists()) return frozen_file_.of(range);
    return engine_.memory()
        .host({plan::PoolKind::host_frozen, *range.block})
        .subspan(range.first, range.bytes);
  }
  if (released_) return {frozen_aside_.get() + range.first, range.bytes};
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

void EmbeddedValues::write_frozen(std::vector<FrozenPiece> pieces) {
  const auto is_on_disk = [&](const FrozenPiece& piece) {
    return piece.range.block && frozen_file_.exists();
  };
  for (const FrozenPiece& piece : pieces) {
    if (!piece.range.block) {
      upload_frozen(piece.range.first, piece.bytes);
    } else if (!is_on_disk(piece)) {
      std::ranges::copy(piece.bytes, frozen(piece.range).begin());
    }
  }
  std::erase_if(pieces, std::not_fn(is_on_disk));
  frozen_file_.write(std::move(pieces));
}

/// In pieces.
void EmbeddedValues::upload_frozen(std::size_t at, std::span<const std::byte> values) {
  const auto target =
      engine_.memory().device({plan::PoolKind::resident_frozen}).subspan(at, values.size());
  const std::span<std::byte> staging = engine_.borrow_staging();
  offload::Stream& stream = *engine_.streams().upload;
  for (std::size_t first = 0; first < values.size(); first += staging.size()) {
    const auto part = values.subspan(first, std::min(staging.size(), values.size() - first));
    std::ranges::copy(part, staging.begin());
    stream.upload(target.subspan(first, part.size()), staging.first(part.size()));
    stream.synchronize();
  }
}

/// Likewise, all of them.
void EmbeddedValues::download_frozen(std::span<std::byte> values) {
  const auto source = engine_.memory().device({plan::PoolKind::resident_frozen});
  const std::span<std::byte> staging = engine_.borrow_staging();
  offload::Stream& stream = *engine_.streams().download;
  for (std::size_t first = 0; first < values.size(); first += staging.size()) {
    const auto part = values.subspan(first, std::min(staging.size(), values.size() - first));
    stream.download(staging.first(part.size()), source.subspan(first, part.size()));
    stream.synchronize();
    std::ranges::copy(staging.first(part.size()), part.begin());
  }
}

void EmbeddedValues::release_device(const EmbeddedLayout& layout,
                                    const offload::ExternalWork& users) {
  const std::size_t frozen = engine_.workload().resident_frozen_bytes.value();
  auto aside = std::make_unique_for_overwrite<std::byte[]>(frozen);
  order_downloads(users);
  for (const ParameterRange& range : layout.ranges) {
    if (is_resident(range)) download(range);
  }
  if (frozen > 0) download_frozen({aside.get(), frozen});
  engine_.memory().release_device();  // CUDA waits for whatever still uses it
  frozen_aside_ = std::move(aside);
  released_ = true;
}

void EmbeddedValues::resume_device(const EmbeddedLayout& layout) {
  engine_.memory().restore_device();
  released_ = false;
  try {
    for (const ParameterRange& range : layout.ranges) {
      if (is_resident(range)) upload(range);
    }
    const std::size_t frozen = engine_.workload().resident_frozen_bytes.value();
    if (frozen > 0) upload_frozen(0, {frozen_aside_.get(), frozen});
  } catch (...) {
    engine_.memory().release_device();
    released_ = true;
    throw;
  }
  frozen_aside_.reset();
}

void EmbeddedValues::clear_padding(const ParameterRange& range) {
  const std::uint64_t end = range.first + range.count;
  std::ranges::fill(
      gradient({.block = range.block, .first = end, .count = round_up(end, kLeafParameters) - end}),
      std::byte{});
}

void EmbeddedValues::order_uploads(const offload::ExternalWork& work) {
  order(*engine_.streams().upload, work);
}

void EmbeddedValues::order_downloads(const offload::ExternalWork& work) {
  order(*engine_.streams().download, work);
}

void EmbeddedValues::order(offload::Stream& stream, const offload::ExternalWork& work) {
  if (work.kind == offload::ExternalWork::Kind::none) return;
  check(shared_ != nullptr, ErrorCode::invalid_argument,
        "a stream or an event of a GPU is given, and the trainer's device is the host; make it for "
        "cuda, or give none");
  shared_->record_behind(work, *external_);
  stream.wait(*external_);
}

EndedMemory EmbeddedValues::take_memory() noexcept {
  Memory& memory = engine_.memory();
  taken_->device = {memory.take_device(plan::PoolKind::resident_parameters),
                    memory.take_device(plan::PoolKind::resident_frozen)};
  taken_->host = {memory.take_host(plan::PoolKind::host_parameters),
                  memory.take_host(plan::PoolKind::host_frozen)};
  taken_->frozen_aside = std::move(frozen_aside_);
  taken_->frozen_tiles = frozen_file_.take_mapping();
  taken_->backend = engine_.take_backend();
  taken_units_->slots = {memory.take_device(plan::PoolKind::parameter_slots),
                         memory.take_device(plan::PoolKind::frozen_slots)};
  taken_units_->values = taken_;
  return {.values = std::move(taken_), .units = std::move(taken_units_)};
}

}  // namespace spillway::engine
