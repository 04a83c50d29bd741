#include "runtime/engine/step/op_actions.hpp"

#include <algorithm>

#include "nvme_swap/format.hpp"
#include "runtime/base/error.hpp"

namespace spillway::engine {

using plan::Op;
using plan::OpKind;
using plan::Tier;
using plan::ValueKind;

namespace {

/// Returns the most bytes of which the workers make a checksum.
std::uint64_t largest_checksum(const OpResources& r) {
  std::uint64_t largest = plan::slot_bytes(r.placement.format, r.placement.tile_parameters).value();
  for (const auto pool :
       {plan::PoolKind::boundary_staging, plan::PoolKind::saved_activation_staging}) {
    const auto& ends = r.memory.pool(pool).ends;
    if (!ends.empty()) largest = std::max(largest, ends.front());
  }
  return largest;
}

std::uint32_t staging_buffers(const plan::Placement& placement) {
  return placement.boundary_staging + placement.saved_staging;
}

}  // namespace

OpActions::OpActions(OpResources resources)
    : resources_(std::move(resources)),
      kernel_(resources_.kernel),
      types_{.format = kernel_.format,
             .gradient = kernel_.gradient_dtype,
             .parameter = kernel_.parameter_dtype},
      state_checksums_(resources_.slots.tiles().size()),
      parameter_checksums_(resources_.slots.tiles().size()),
      piece_checksums_(nvme_swap::checksum_pieces(largest_checksum(resources_))),
      tile_update_(resources_.workers, plan::state_bytes(resources_.placement.format,
                                                         resources_.placement.tile_parameters)),
      writes_(resources_.slots.tiles().size()),
      copy_writes_(resources_.slots.tiles().size()),
      copies_(resources_.slots.tiles().size() + 1),
      activation_tiles_(resources_.memory),
      activation_moves_(staging_buffers(resources_.placement)),
      activation_checksums_(staging_buffers(resources_.placement)),
      held_(resources_.placement.state_slots, kNoTile) {
  step_.commit.payload.reserve(nvme_swap::kMaxCommitPayload);
}

bool OpActions::skips(const Op& op) const {
  if (op.kind == OpKind::commit) return !step_.commit_due && step_.copy == nullptr;
  if (op.kind == OpKind::stash) return !step_.stash_due;
  const bool from_disk = plan::is_copy(op, plan::kReadState);
  // Only a buffer's first read of a step, or a read ahead, may find its tile there: by the turn of
  // a later read, others have overwritten the buffer.
  const bool first_user = op.held || !op.if_pending;
  if (from_disk && first_user && held_[memory_of(op).target().first] == op.tile) return true;
  return op.if_pending && !step_.update.pending;
}

void OpActions::enqueue(const Op& op, offload::Stream& stream) {
  switch (op.kind) {
    case OpKind::copy:
      if (op.copied == plan::kStageState) return stage_state(op, stream);
      if (op.copied == plan::kKeepParams) return keep_secondary(op, stream);
      return copy(op, stream);
    case OpKind::forward:
      upload_tokens(op, stream);
      return stream.submit([this, &op] { forward(op); });
    case OpKind::backward: return stream.submit([this, &op] { backward(op); });
    case OpKind::loss: upload_tokens(op, stream); return stream.submit([this, &op] { loss(op); });
    case OpKind::accumulate: return stream.submit([this, &op] { round_gradient(op); });
    case OpKind::grad_norm: return stream.submit([this, &op] { device_norm(op); });
    case OpKind::update: return stream.submit([this, &op] { device_update(op); });
    case OpKind::stash: return stream.submit([this, &op] { device_stash(op); });
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
    case OpKind::all_reduce:
    case OpKind::all_to_all:
    case OpKind::send:
    case OpKind::receive: return exchange(op, stream);
    case OpKind::checksum:
    case OpKind::commit: break;
  }
  SPILLWAY_ASSERT(false && "no stream runs this kind of op");
}

/// Token ids are far below one block's parameters; they ride in the compute stream's order.
void OpActions::upload_tokens(const Op& op, offload::Stream& stream) const {
  const OpMemory memory = memory_of(op);
  if (!memory.writes(ValueKind::tokens)) return;
  stream.upload(memory.device(memory.write(ValueKind::tokens)),
                memory.host(memory.read(ValueKind::tokens)));
}

/// Copies as many bytes as the op says from a buffer to one in the other tier.
void OpActions::copy(const Op& op, offload::Stream& stream) {
  const OpMemory memory = memory_of(op);
  const std::size_t bytes = op.bytes.value();
  if (op.lane == plan::Lane::h2d) {
    stream.upload(memory.device(memory.target(), op.bytes),
                  memory.host(memory.source()).first(bytes));
  } else {
    stream.download(memory.host(memory.target()).first(bytes),
                    memory.device(memory.source(), op.bytes));
  }
  count(op, bytes);
}

/// Copies this rank's part of a block that its node has gathered.
void OpActions::keep_secondary(const Op& op, offload::Stream& stream) {
  const OpMemory memory = memory_of(op);
  const plan::Replicas& replicas = resources_.workload.replicas;
  const std::size_t first = replicas.index % replicas.secondary * op.bytes.value();
  stream.download(
      memory.host(memory.target()).first(op.bytes.value()),
      memory.device(memory.source(), compute_bytes(op.block)).subspan(first, op.bytes.value()));
  count(op, op.bytes.value());
}

/// Starts a copy to or from the disk.
Ticket OpActions::copy(const Op& op) {
  const bool state = op.copied.what == ValueKind::state;
  if (op.copied.to == Tier::nvme) return state ? write(op) : spill(op);
  return state ? read_state(op) : fetch(op);
}

/// Brings state that lives on the device, and the parameters that belong to it, to a staging buffer
/// on its way to the disk.
void OpActions::stage_state(const Op& op, offload::Stream& stream) {
  const OpMemory memory = memory_of(op);
  const StateSlots& slots = resources_.slots;
  const plan::Buffer staging = memory.write(ValueKind::state, op.tile);
  const auto slot = slots.slot_of(op.tile, memory.host(staging));
  held_[staging.first] = kNoTile;
  stream.download(slots.state_of(op.tile, slot),
                  memory.device(memory.read(ValueKind::state, op.tile)));
  if (slots.with_parameters()) {
    stream.download(slots.parameters_of(op.tile, slot),
                    memory.device(memory.read(ValueKind::parameters, op.block)));
  }
  count(op, slot.size());
}

Ticket OpActions::read_state(const Op& op) {
  const OpMemory memory = memory_of(op);
  const plan::Buffer staging = memory.target();
  const auto target = resources_.slots.state_of(op.tile, memory.host(staging));
  held_[staging.first] = op.tile;  // an update keeps it so: what it writes is the newest
  count(op, target.size());
  return resources_.store->read(StateSlots::state(memory.source().first), target);
}

Ticket OpActions::start(const Op& op) {
  cpu_adam::WorkerPool& workers = resources_.workers;
  switch (op.kind) {
    case OpKind::copy: return copy(op);
    case OpKind::commit: return commit();
    case OpKind::accumulate: return workers.submit([this, &op] { host_accumulate(op); });
    case OpKind::grad_norm: return workers.submit([this, &op] { host_norm(op); });
    case OpKind::update: return workers.submit([this, &op] { host_update(op); });
    case OpKind::stash: return workers.submit([this, &op] { host_stash(op); });
    case OpKind::checksum: return workers.submit([this, &op] { host_checksum(op); });
    case OpKind::forward: return resources_.passes->forward(external_pass(op));
    case OpKind::backward: return resources_.passes->backward(external_pass(op));
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
    case OpKind::all_reduce:
    case OpKind::all_to_all:
    case OpKind::send:
    case OpKind::receive: return exchange(op);
    case OpKind::loss: break;
  }
  SPILLWAY_ASSERT(false && "no worker runs this kind of op");
  return {};
}

ExternalPass OpActions::external_pass(const Op& op) const {
  const OpMemory memory = memory_of(op);
  const auto find = [&](ValueKind what) -> std::byte* {
    if (!memory.reads(what, op.block)) return nullptr;
    const plan::Buffer from = memory.read(what, op.block);
    return plan::tier_of(from.pool) == Tier::device ? memory.device(from).address()
                                                    : memory.host(from).data();
  };
  return {.block = op.block,
          .parameters = find(ValueKind::parameters),
          .frozen = find(ValueKind::frozen)};
}

std::span<std::byte> OpActions::state_of(const Op& op) const {
  const OpMemory memory = memory_of(op);
  return resources_.slots.state_of(op.tile, memory.host(memory.read(ValueKind::state, op.tile)));
}

std::span<const std::byte> OpActions::parameters_to_write(const Op& op) const {
  const OpMemory memory = memory_of(op);
  if (memory.reads(ValueKind::parameters, op.block)) {
    return memory.host(memory.read(ValueKind::parameters, op.block));
  }
  // Those of state that lives on the device have been staged with it.
  const auto staged = memory.host(memory.read(ValueKind::state, op.tile));
  return resources_.slots.parameters_of(op.tile, resources_.slots.slot_of(op.tile, staged));
}

Ticket OpActions::write_slot(const Op& op, nvme_swap::TileStore& store, TicketPairs& pairs) {
  const OpMemory memory = memory_of(op);
  const StateSlots& slots = resources_.slots;
  const std::uint32_t tile = memory.write(ValueKind::state, op.tile).first;
  const std::uint32_t sums = memory.read(ValueKind::checksum, op.tile).first;
  Ticket state = store.write(StateSlots::state(tile), state_of(op), state_checksums_[sums]);
  if (!slots.with_parameters()) return state;
  return pairs.join(
      op.tile, std::move(state),
      store.write(slots.parameters(tile), parameters_to_write(op), parameter_checksums_[sums]));
}

Ticket OpActions::write(const Op& op) {
  count(op, state_of(op).size());
  if (resources_.slots.with_parameters()) count(op, parameters_to_write(op).size());
  Ticket written;
  if (resources_.store != nullptr) written = write_slot(op, *resources_.store, writes_);
  if (step_.copy == nullptr) return written;
  return copies_.join(op.tile, std::move(written), write_slot(op, *step_.copy, copy_writes_));
}

Ticket OpActions::commit() {
  Ticket committed;
  if (step_.commit_due) committed = resources_.store->commit(step_.commit);
  if (step_.copy == nullptr) return committed;
  const auto slot = static_cast<std::uint32_t>(resources_.slots.tiles().size());
  return copies_.join(slot, std::move(committed), step_.copy->commit(step_.commit));
}

}  // namespace spillway::engine
