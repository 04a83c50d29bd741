#include "runtime/engine/step/activation_ops.hpp"

#include <utility>

namespace spillway::engine {

using plan::Op;

namespace {

std::uint32_t staging_buffers(const plan::Placement& placement) {
  return placement.boundary_staging + placement.saved_staging;
}

}  // namespace

ActivationOps::ActivationOps(OpContext& context, WorkerChecksum& checksum)
    : context_(context),
      checksum_(checksum),
      tiles_(activation_tiles(context.resources.memory)),
      moves_(staging_buffers(context.resources.placement)),
      checksums_(staging_buffers(context.resources.placement)) {}

std::uint32_t ActivationOps::staging_number(const plan::Buffer& staging) const {
  const bool boundary = staging.pool == plan::PoolKind::boundary_staging;
  return staging.first + (boundary ? 0 : context_.resources.placement.boundary_staging);
}

Ticket ActivationOps::spill(const Op& op) {
  const std::uint32_t number = staging_number(context_.memory_of(op).source());
  Ticket summed = context_.resources.workers.submit([this, &op, number] {
    const OpMemory memory = context_.memory_of(op);
    checksums_[number] = checksum_.of(memory.host(memory.source()).first(op.bytes.value()));
  });
  return moves_.start(number, std::move(summed), {this, &op});
}

Ticket ActivationOps::write(const Op& op) {
  const OpMemory memory = context_.memory_of(op);
  const auto source = memory.host(memory.source()).first(op.bytes.value());
  context_.count(op, source.size());
  return context_.resources.activation_store->write(tiles_.tile_of(memory.target()), source,
                                                    checksums_[staging_number(memory.source())]);
}

Ticket ActivationOps::fetch(const Op& op) {
  const OpMemory memory = context_.memory_of(op);
  const auto target = memory.host(memory.target()).first(op.bytes.value());
  context_.count(op, target.size());
  Ticket read = context_.resources.activation_store->read(tiles_.tile_of(memory.source()), target);
  return moves_.start(staging_number(memory.target()), std::move(read), {this, &op});
}

Ticket ActivationOps::verify(const Op& op) {
  return context_.resources.workers.submit([this, &op] {
    const OpMemory memory = context_.memory_of(op);
    const auto read = memory.host(memory.target()).first(op.bytes.value());
    context_.resources.activation_store->verify(tiles_.tile_of(memory.source()),
                                                checksum_.of(read));
  });
}

}  // namespace spillway::engine
