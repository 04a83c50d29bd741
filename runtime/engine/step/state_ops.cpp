#include "runtime/engine/step/state_ops.hpp"

#include <utility>

namespace spillway::engine {

using plan::Op;
using plan::ValueKind;

StateOps::StateOps(OpContext& context, WorkerChecksum& checksum)
    : context_(context),
      checksum_(checksum),
      state_checksums_(context.resources.slots.tiles().size()),
      parameter_checksums_(context.resources.slots.tiles().size()),
      writes_(context.resources.slots.tiles().size()),
      copy_writes_(context.resources.slots.tiles().size()),
      copies_(context.resources.slots.tiles().size() + 1),
      held_(context.resources.placement.state_slots, kNoTile) {}

void StateOps::copy_to_staging(const Op& op, offload::Stream& stream) {
  const OpMemory memory = context_.memory_of(op);
  const StateSlots& slots = context_.resources.slots;
  const plan::Buffer staging = memory.write(ValueKind::state, op.tile);
  const auto slot = slots.slot_of(op.tile, memory.host(staging));
  held_[staging.first] = kNoTile;
  stream.download(slots.state_of(op.tile, slot),
                  memory.device(memory.read(ValueKind::state, op.tile)));
  if (slots.with_parameters()) {
    stream.download(slots.parameters_of(op.tile, slot),
                    memory.device(memory.read(ValueKind::parameters, op.block)));
  }
  context_.count(op, slot.size());
}

Ticket StateOps::read(const Op& op) {
  const OpMemory memory = context_.memory_of(op);
  const plan::Buffer staging = memory.target();
  const auto target = context_.resources.slots.state_of(op.tile, memory.host(staging));
  held_[staging.first] = op.tile;  // an update keeps it so: what it writes is the newest
  context_.count(op, target.size());
  return context_.resources.store->read(StateSlots::state(memory.source().first), target);
}

std::span<std::byte> StateOps::state_of(const Op& op) const {
  const OpMemory memory = context_.memory_of(op);
  return context_.resources.slots.state_of(op.tile,
                                           memory.host(memory.read(ValueKind::state, op.tile)));
}

std::span<const std::byte> StateOps::parameters_to_write(const Op& op) const {
  const OpMemory memory = context_.memory_of(op);
  if (memory.reads(ValueKind::parameters, op.block)) {
    return memory.host(memory.read(ValueKind::parameters, op.block));
  }
  // Those of state that lives on the device have been staged with it.
  const auto staged = memory.host(memory.read(ValueKind::state, op.tile));
  return context_.resources.slots.parameters_of(op.tile,
                                                context_.resources.slots.slot_of(op.tile, staged));
}

Ticket StateOps::write_slot(const Op& op, nvme_swap::TileStore& store, TicketPairs& pairs) {
  const OpMemory memory = context_.memory_of(op);
  const StateSlots& slots = context_.resources.slots;
  const std::uint32_t tile = memory.write(ValueKind::state, op.tile).first;
  const std::uint32_t sums = memory.read(ValueKind::checksum, op.tile).first;
  Ticket state = store.write(StateSlots::state(tile), state_of(op), state_checksums_[sums]);
  if (!slots.with_parameters()) return state;
  return pairs.join(
      op.tile, std::move(state),
      store.write(slots.parameters(tile), parameters_to_write(op), parameter_checksums_[sums]));
}

Ticket StateOps::write(const Op& op) {
  context_.count(op, state_of(op).size());
  if (context_.resources.slots.with_parameters())
    context_.count(op, parameters_to_write(op).size());
  Ticket written;
  if (context_.resources.store != nullptr)
    written = write_slot(op, *context_.resources.store, writes_);
  nvme_swap::TileStore* const copy = context_.decisions->disk.copy;
  if (copy == nullptr) return written;
  return copies_.join(op.tile, std::move(written), write_slot(op, *copy, copy_writes_));
}

Ticket StateOps::commit() {
  const StepDecisions& decided = *context_.decisions;
  Ticket committed;
  if (decided.disk.commits) committed = context_.resources.store->commit(decided.commit);
  if (decided.disk.copy == nullptr) return committed;
  const auto slot = static_cast<std::uint32_t>(context_.resources.slots.tiles().size());
  return copies_.join(slot, std::move(committed), decided.disk.copy->commit(decided.commit));
}

void StateOps::sum(const Op& op) {
  state_checksums_[op.tile] = checksum_.of(state_of(op));
  if (context_.resources.slots.with_parameters()) {
    parameter_checksums_[op.tile] = checksum_.of(parameters_to_write(op));
  }
}

}  // namespace spillway::engine
