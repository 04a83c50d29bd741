// The ops that move boundaries: device slots to the host and back, staging to the disk and back.
#include <utility>

#include "runtime/engine/op_actions.hpp"

namespace spillway::engine {

using plan::Op;
using plan::OpKind;

void OpActions::copy_boundary(const Op& op, offload::Stream& stream) {
  BoundaryHomes& boundaries = resources_.homes.boundaries();
  const auto host = boundaries.host(op);
  const auto device = boundaries.slot(op.boundary_slot);
  if (op.kind == OpKind::save_activation) {
    stream.download(host, device);
  } else {
    stream.upload(device, host);
  }
  count(op.kind, host.size());
}

/// The workers' checksum, then the disk.
Ticket OpActions::spill(const Op& op) {
  Ticket summed = resources_.workers.submit([this, &op] {
    boundary_checksums_[op.slot] = checksum(resources_.homes.boundaries().staging(op.slot));
  });
  return boundary_moves_.start(op.slot, std::move(summed), {this, &op});
}

Ticket OpActions::write_boundary(const Op& op) {
  BoundaryHomes& boundaries = resources_.homes.boundaries();
  const auto source = boundaries.staging(op.slot);
  count(op.kind, source.size());
  return resources_.activation_store->write(boundaries.on_disk(op.block, op.micro_batch), source,
                                            boundary_checksums_[op.slot]);
}

/// The disk, then the workers' comparison.
Ticket OpActions::fetch(const Op& op) {
  BoundaryHomes& boundaries = resources_.homes.boundaries();
  const auto target = boundaries.staging(op.slot);
  count(op.kind, target.size());
  Ticket read =
      resources_.activation_store->read(boundaries.on_disk(op.block, op.micro_batch), target);
  return boundary_moves_.start(op.slot, std::move(read), {this, &op});
}

Ticket OpActions::verify_boundary(const Op& op) {
  return resources_.workers.submit([this, &op] {
    BoundaryHomes& boundaries = resources_.homes.boundaries();
    resources_.activation_store->verify(boundaries.on_disk(op.block, op.micro_batch),
                                        checksum(boundaries.staging(op.slot)));
  });
}

}  // namespace spillway::engine
