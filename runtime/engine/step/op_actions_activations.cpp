// The ops that move saved tensors between staging and the disk.
#include <utility>

#include "runtime/engine/step/op_actions.hpp"

namespace spillway::engine {

using plan::Op;

/// Returns the number of a staging buffer among those of boundaries and of saved activations.
std::uint32_t OpActions::staging_number(const plan::Buffer& staging) const {
  const bool boundary = staging.pool == plan::PoolKind::boundary_staging;
  return staging.first + (boundary ? 0 : resources_.placement.boundary_staging);
}

/// Starts the workers' checksum, and then the write to disk.
Ticket OpActions::spill(const Op& op) {
  const std::uint32_t number = staging_number(memory_of(op).source());
  Ticket summed = resources_.workers.submit([this, &op, number] {
    const OpMemory memory = memory_of(op);
    activation_checksums_[number] = checksum(memory.host(memory.source()).first(op.bytes.value()));
  });
  return activation_moves_.start(number, std::move(summed), {this, &op});
}

Ticket OpActions::write_activations(const Op& op) {
  const OpMemory memory = memory_of(op);
  const auto source = memory.host(memory.source()).first(op.bytes.value());
  count(op, source.size());
  return resources_.activation_store->write(activation_tiles_.tile_of(memory.target()), source,
                                            activation_checksums_[staging_number(memory.source())]);
}

/// Starts the read from disk, and then the workers' comparison.
Ticket OpActions::fetch(const Op& op) {
  const OpMemory memory = memory_of(op);
  const auto target = memory.host(memory.target()).first(op.bytes.value());
  count(op, target.size());
  Ticket read =
      resources_.activation_store->read(activation_tiles_.tile_of(memory.source()), target);
  return activation_moves_.start(staging_number(memory.target()), std::move(read), {this, &op});
}

Ticket OpActions::verify_activations(const Op& op) {
  return resources_.workers.submit([this, &op] {
    const OpMemory memory = memory_of(op);
    const auto read = memory.host(memory.target()).first(op.bytes.value());
    resources_.activation_store->verify(activation_tiles_.tile_of(memory.source()), checksum(read));
  });
}

}  // namespace spillway::engine
