#include "runtime/engine/step/op_actions.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/engine/step/rank_ops.hpp"

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
       {plan::PoolKind::boundary_staging, plan::PoolKind::saved_activation_staging,
        plan::PoolKind::frozen_staging}) {
    const auto& ends = r.memory.pool(pool).ends;
    if (!ends.empty()) largest = std::max(largest, ends.front());
  }
  return largest;
}

}  // namespace

OpActions::OpActions(OpResources resources)
    : context_{.resources = std::move(resources), .decisions = &undecided_},
      checksum_(context_.resources.workers, largest_checksum(context_.resources)),
      passes_(context_),
      state_(context_, checksum_),
      updates_(context_, state_),
      activations_(context_, checksum_),
      frozen_(context_, checksum_) {}

bool OpActions::skips(const Op& op) const {
  const StepDecisions& decided = *context_.decisions;
  if (op.kind == OpKind::commit) return !decided.disk.commits && decided.disk.copy == nullptr;
  if (op.kind == OpKind::stash) return !decided.stash_due;
  const bool from_disk = plan::is_copy(op, plan::kReadState);
  // Only a buffer's first read of a step, or a read ahead, may find its tile there: by the turn of
  // a later read, others have overwritten the buffer.
  const bool first_user = op.held || (!op.if_pending && !op.speculative);
  if (from_disk && first_user && state_.holds(context_.memory_of(op).target(), op.tile)) {
    return true;
  }
  return op.if_pending && !decided.update.pending;
}

void OpActions::enqueue(const Op& op, offload::Stream& stream) {
  switch (op.kind) {
    case OpKind::copy:
      if (op.copied == plan::kStageState) return state_.copy_to_staging(op, stream);
      if (op.copied == plan::kKeepParams) return keep_secondary(op, stream);
      return copy(op, stream);
    case OpKind::forward:
      upload_tokens(op, stream);
      return stream.submit([this, &op] { passes_.forward(op); });
    case OpKind::backward: return stream.submit([this, &op] { passes_.backward(op); });
    case OpKind::loss:
      upload_tokens(op, stream);
      return stream.submit([this, &op] { passes_.loss(op); });
    case OpKind::round_gradient: return stream.submit([this, &op] { updates_.round_gradient(op); });
    case OpKind::grad_norm: return stream.submit([this, &op] { updates_.device_norm(op); });
    case OpKind::update: return stream.submit([this, &op] { updates_.device_update(op); });
    case OpKind::stash: return stream.submit([this, &op] { device_stash(op); });
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
    case OpKind::all_reduce:
    case OpKind::all_to_all:
    case OpKind::send:
    case OpKind::receive: return exchange(context_, op, stream);
    case OpKind::add_gradient:
    case OpKind::checksum:
    case OpKind::commit: break;
  }
  SPILLWAY_ASSERT(false && "no stream runs this kind of op");
}

/// Token ids are far below one block's parameters; they ride in the compute stream's order.
void OpActions::upload_tokens(const Op& op, offload::Stream& stream) const {
  const OpMemory memory = context_.memory_of(op);
  if (!memory.writes(ValueKind::tokens)) return;
  stream.upload(memory.device(memory.write(ValueKind::tokens)),
                memory.host(memory.read(ValueKind::tokens)));
}

/// Copies as many bytes as the op says from a buffer to one in the other tier.
void OpActions::copy(const Op& op, offload::Stream& stream) {
  const OpMemory memory = context_.memory_of(op);
  const std::size_t bytes = op.bytes.value();
  if (op.lane == plan::Lane::h2d) {
    stream.upload(memory.device(memory.target(), op.bytes),
                  memory.host(memory.source()).first(bytes));
  } else {
    stream.download(memory.host(memory.target()).first(bytes),
                    memory.device(memory.source(), op.bytes));
  }
  context_.count(op, bytes);
}

/// Copies this rank's part of a block that its node has gathered.
void OpActions::keep_secondary(const Op& op, offload::Stream& stream) {
  const OpMemory memory = context_.memory_of(op);
  const plan::Replicas& replicas = context_.resources.workload.replicas;
  const std::uint32_t replica = context_.resources.ranks.place().replica();
  const std::size_t first = replica % replicas.secondary * op.bytes.value();
  stream.download(memory.host(memory.target()).first(op.bytes.value()),
                  memory.device(memory.source(), context_.compute_bytes(op.block))
                      .subspan(first, op.bytes.value()));
  context_.count(op, op.bytes.value());
}

/// Starts a copy to or from the disk.
Ticket OpActions::copy(const Op& op) {
  if (op.copied.what == ValueKind::frozen) return frozen_.read(op);
  const bool state = op.copied.what == ValueKind::state;
  if (op.copied.to == Tier::nvme) return state ? state_.write(op) : activations_.spill(op);
  return state ? state_.read(op) : activations_.fetch(op);
}

Ticket OpActions::start(const Op& op) {
  cpu_adam::WorkerPool& workers = context_.resources.workers;
  switch (op.kind) {
    case OpKind::copy: return copy(op);
    case OpKind::commit: return state_.commit();
    case OpKind::add_gradient: return workers.submit([this, &op] { updates_.add_gradient(op); });
    case OpKind::grad_norm: return workers.submit([this, &op] { updates_.host_norm(op); });
    case OpKind::update: return workers.submit([this, &op] { updates_.host_update(op); });
    case OpKind::stash: return workers.submit([this, &op] { host_stash(op); });
    case OpKind::checksum: return workers.submit([this, &op] { state_.sum(op); });
    case OpKind::forward: return context_.resources.framework->forward(external_pass(op));
    case OpKind::backward: return context_.resources.framework->backward(external_pass(op));
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
    case OpKind::all_reduce:
    case OpKind::all_to_all:
    case OpKind::send:
    case OpKind::receive: return exchange(context_, op);
    case OpKind::loss:
    case OpKind::round_gradient: break;
  }
  SPILLWAY_ASSERT(false && "no worker runs this kind of op");
  return {};
}

ExternalPass OpActions::external_pass(const Op& op) const {
  const OpMemory memory = context_.memory_of(op);
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

void OpActions::device_stash(const Op& op) const {
  const OpMemory memory = context_.memory_of(op);
  context_.resources.device_math.copy(memory.device(memory.target()),
                                      memory.device(memory.source()));
}

void OpActions::host_stash(const Op& op) const {
  const OpMemory memory = context_.memory_of(op);
  const std::span<std::byte> source = memory.host(memory.source());
  const std::span<std::byte> target = memory.host(memory.target());
  context_.resources.workers.parallel_for(
      source.size(), kLeafParameters, [&](std::size_t first, std::size_t last) {
        std::memcpy(target.data() + first, source.data() + first, last - first);
      });
}

}  // namespace spillway::engine
