// The ops that move boundaries between staging and the disk.
#include <utility>

#include "runtime/engine/step/op_actions.hpp"
#include "runtime/plan/placement/boundaries.hpp"

namespace spillway::engine {

using plan::Op;

/// Returns the place of a boundary in the store of activations, which has tiles of one size only
/// for those that go to the disk.
TileIndex OpActions::activation_tile(const plan::Buffer& buffer) const {
  const std::uint64_t each = plan::boundary_disk_bytes(resources_.workload).value();
  return TileIndex{
      static_cast<std::uint32_t>(resources_.memory.pool(buffer.pool).offset(buffer.first) / each)};
}

/// The workers' checksum, then the disk.
Ticket OpActions::spill(const Op& op) {
  const plan::Buffer source = memory_of(op).source();
  Ticket summed = resources_.workers.submit([this, source] {
    boundary_checksums_[source.first] = checksum(resources_.memory.host(source));
  });
  return boundary_moves_.start(source.first, std::move(summed), {this, &op});
}

Ticket OpActions::write_boundary(const Op& op) {
  const OpMemory memory = memory_of(op);
  const auto source = memory.host(memory.source());
  count(op, source.size());
  return resources_.activation_store->write(activation_tile(memory.target()), source,
                                            boundary_checksums_[memory.source().first]);
}

/// The disk, then the workers' comparison.
Ticket OpActions::fetch(const Op& op) {
  const OpMemory memory = memory_of(op);
  const auto target = memory.host(memory.target());
  count(op, target.size());
  Ticket read = resources_.activation_store->read(activation_tile(memory.source()), target);
  return boundary_moves_.start(memory.target().first, std::move(read), {this, &op});
}

Ticket OpActions::verify_boundary(const Op& op) {
  return resources_.workers.submit([this, &op] {
    const OpMemory memory = memory_of(op);
    resources_.activation_store->verify(activation_tile(memory.source()),
                                        checksum(memory.host(memory.target())));
  });
}

}  // namespace spillway::engine
