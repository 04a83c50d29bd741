// The ops of many ranks: what an op reads goes to the others, what it writes comes from them.
#include "runtime/engine/step/op_actions.hpp"

namespace spillway::engine {

using plan::Op;
using plan::OpKind;

namespace {

/// Returns the group that an op is one of.
template <class Group>
Group& group_of(const Op& op, Group* replicas, Group* node, Group* tensor) {
  switch (op.group) {
    case plan::RankGroup::all: return *replicas;
    case plan::RankGroup::node: return *node;
    case plan::RankGroup::tensor: break;
  }
  return *tensor;
}

}  // namespace

/// Returns what replicas exchange, or the ranks of a node.
OpActions::Collective OpActions::buffers_of_replicas(const Op& op) const {
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
          .target = {memory.device(memory.target(), Bytes{got}).address(), got},
          .dtype = workload.compute};
}

/// Returns the gradients of what all ranks of a tensor group have: they end a block.
OpActions::Collective OpActions::shared_sums(const Op& op) const {
  const OpMemory memory = memory_of(op);
  const plan::BlockShape& block = resources_.workload.blocks[op.block];
  const std::size_t first = block.partial_first.value() * sizeof(float);
  const std::size_t bytes = (block.parameters - block.partial_first).value() * sizeof(float);
  const auto sums = memory.device(memory.target()).subspan(first, bytes);
  return {
      .source = {sums.address(), bytes}, .target = {sums.address(), bytes}, .dtype = DType::fp32};
}

/// Returns what passes of a tensor group have made, or what its ranks gather: tokens, or what they
/// know of them.
OpActions::Collective OpActions::buffers_of_passes(const Op& op) const {
  const OpMemory memory = memory_of(op);
  const plan::Workload& workload = resources_.workload;
  const bool scans = op.copied.what == plan::ValueKind::gathered_scans;
  const Bytes own = scans ? workload.scan_bytes : workload.boundary_bytes;
  const Bytes all = scans ? own * std::uint64_t{workload.tensor.count} : workload.summed_bytes;
  const Bytes given = op.kind == OpKind::all_gather ? own : all;
  const Bytes got = op.kind == OpKind::reduce_scatter ? own : all;
  return {.source = {memory.device(memory.source(), given).address(), given.value()},
          .target = {memory.device(memory.target(), got).address(), got.value()},
          .dtype = workload.compute};
}

OpActions::Collective OpActions::buffers_of(const Op& op) const {
  if (op.group != plan::RankGroup::tensor) return buffers_of_replicas(op);
  const bool of_gradients = op.copied.what == plan::ValueKind::gradient_sum;
  return of_gradients ? shared_sums(op) : buffers_of_passes(op);
}

/// The device's memory is the process's own.
Ticket OpActions::collective(const Op& op) {
  const auto [source, target, dtype] = buffers_of(op);
  comm::Communicator& ranks =
      group_of(op, resources_.ranks, resources_.node_ranks, resources_.tensor);
  switch (op.kind) {
    case OpKind::all_gather: return ranks.all_gather(source, target);
    case OpKind::reduce_scatter:
      return ranks.reduce_scatter(source, target, {.addend = dtype, .result = dtype});
    case OpKind::all_to_all: return ranks.all_to_all(source, target);
    default: return ranks.all_reduce(target, dtype);
  }
}

/// The device's memory is a GPU's.
void OpActions::collective(const Op& op, offload::Stream& stream) {
  const Collective buffers = buffers_of(op);
  const comm::DeviceSource source{buffers.source.data(), buffers.source.size()};
  const comm::DeviceTarget target{buffers.target.data(), buffers.target.size()};
  const GpuEnds& gpus = resources_.gpus;
  comm::DeviceCommunicator& ranks =
      group_of(op, gpus.replicas, resources_.gpu_node_ranks, gpus.tensor);
  switch (op.kind) {
    case OpKind::all_gather: return ranks.all_gather(source, target, stream.native());
    case OpKind::reduce_scatter:
      return ranks.reduce_scatter(source, target, buffers.dtype, stream.native());
    case OpKind::all_to_all: return ranks.all_to_all(source, target, stream.native());
    default: return ranks.all_reduce(target, buffers.dtype, stream.native());
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

void OpActions::message(const Op& op, offload::Stream& stream) {
  const OpMemory memory = memory_of(op);
  const auto at = memory.device(memory.message(), op.bytes);
  const comm::DeviceTarget bytes{at.address(), at.size()};
  comm::DeviceCommunicator& line = *resources_.gpus.line;
  if (op.kind == OpKind::send) return line.send(bytes, Rank{op.peer}, stream.native());
  return line.receive(bytes, Rank{op.peer}, stream.native());
}

}  // namespace spillway::engine
