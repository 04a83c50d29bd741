// The ops of many ranks: what an op reads goes to the others, what it writes comes from them.
#include "runtime/engine/step/op_actions.hpp"

namespace spillway::engine {

using plan::Op;
using plan::OpKind;

OpActions::Collective OpActions::buffers_of(const Op& op) const {
  const OpMemory memory = memory_of(op);
  const plan::Workload& workload = resources_.workload;
  const bool of_parameters = memory.reads(plan::ValueKind::parameters, op.block);
  const bool on_node = op.group == plan::RankGroup::node;
  const std::uint64_t whole = compute_bytes(op.block).value();
  const std::uint32_t parts = on_node ? workload.ranks.secondary : workload.shards();
  const std::uint64_t given = of_parameters ? whole / parts : whole;
  std::uint64_t got = given;
  if (op.kind == OpKind::all_gather) got = on_node ? whole : given * workload.ranks.count;
  if (op.kind == OpKind::reduce_scatter) got = given / workload.ranks.count;
  return {.source = {memory.device(memory.source(), Bytes{given}).address(), given},
          .target = {memory.device(memory.target(), Bytes{got}).address(), got}};
}

/// The device's memory is the process's own.
Ticket OpActions::collective(const Op& op) {
  const auto [source, target] = buffers_of(op);
  const DType dtype = resources_.workload.compute;
  const bool on_node = op.group == plan::RankGroup::node;
  comm::Communicator& ranks = on_node ? *resources_.node_ranks : *resources_.ranks;
  switch (op.kind) {
    case OpKind::all_gather: return ranks.all_gather(source, target);
    case OpKind::reduce_scatter:
      return ranks.reduce_scatter(source, target, {.addend = dtype, .result = dtype});
    case OpKind::all_to_all: return ranks.all_to_all(source, target);
    default: return ranks.all_reduce(target, dtype);
  }
}

/// Brings an activation or its gradient from one stage of a pipeline to another.
Ticket OpActions::message(const Op& op) {
  const OpMemory memory = memory_of(op);
  const auto at = memory.device(memory.message(), op.bytes);
  const std::span<std::byte> bytes{at.address(), at.size()};
  if (op.kind == OpKind::send) return resources_.line->send(bytes, Rank{op.peer});
  return resources_.line->receive(bytes, Rank{op.peer});
}

/// The device's memory is a GPU's.
void OpActions::collective(const Op& op, offload::Stream& stream) {
  const Collective buffers = buffers_of(op);
  const comm::DeviceSource source{buffers.source.data(), buffers.source.size()};
  const comm::DeviceTarget target{buffers.target.data(), buffers.target.size()};
  const DType dtype = resources_.workload.compute;
  const bool on_node = op.group == plan::RankGroup::node;
  comm::DeviceCommunicator& ranks = on_node ? *resources_.gpu_node_ranks : *resources_.gpu_ranks;
  switch (op.kind) {
    case OpKind::all_gather: return ranks.all_gather(source, target, stream.native());
    case OpKind::reduce_scatter:
      return ranks.reduce_scatter(source, target, dtype, stream.native());
    case OpKind::all_to_all: return ranks.all_to_all(source, target, stream.native());
    default: return ranks.all_reduce(target, dtype, stream.native());
  }
}

}  // namespace spillway::engine
