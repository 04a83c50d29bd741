#include "runtime/engine/step/rank_ops.hpp"

#include <span>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/pools.hpp"
#include "runtime/plan/reduction.hpp"

namespace spillway::engine {

using plan::Op;
using plan::OpKind;

namespace {

/// What an op of many ranks reads and writes in the device's memory; a message has one buffer.
struct Exchanged {
  std::span<const std::byte> source;
  std::span<std::byte> target;
  DType dtype;  ///< of sums
};

comm::SumTypes sum_types(const comm::Communicator& /*end*/, DType dtype) { return {dtype, dtype}; }
DType sum_types(const comm::DeviceCommunicator& /*end*/, DType dtype) { return dtype; }

/// Starts the op at this rank's end of its group, on the memory of hosts or of GPUs. `stream`:
/// where GPUs run it.
template <class End, class... Stream>
auto start_at(End& end, const Op& op, const Exchanged& exchanged, Stream... stream) {
  const typename End::Source source{exchanged.source.data(), exchanged.source.size()};
  const typename End::Target target{exchanged.target.data(), exchanged.target.size()};
  switch (op.kind) {
    case OpKind::all_gather: return end.all_gather(source, target, stream...);
    case OpKind::reduce_scatter:
      return end.reduce_scatter(source, target, sum_types(end, exchanged.dtype), stream...);
    case OpKind::all_to_all: return end.all_to_all(source, target, stream...);
    case OpKind::send: return end.send(source, Rank{op.peer}, stream...);
    case OpKind::receive: return end.receive(target, Rank{op.peer}, stream...);
    case OpKind::all_reduce: return end.all_reduce(target, exchanged.dtype, stream...);
    default: SPILLWAY_ASSERT(false && "ranks do not exchange in this kind of op");
  }
}

Exchanged exchanged(const OpMemory& memory, Bytes given, Bytes got, DType dtype) {
  return {.source = {memory.device(memory.source(), given).address(), given.value()},
          .target = {memory.device(memory.target(), got).address(), got.value()},
          .dtype = dtype};
}

/// Returns a block's parameters, which replicas or the ranks of a node gather.
Exchanged gathered_parameters(const OpContext& context, const Op& op) {
  const plan::Workload& workload = context.resources.workload;
  const bool on_node = op.group == plan::RankGroup::node;
  const std::uint32_t parts = on_node ? workload.replicas.secondary : workload.shards();
  const Bytes whole = context.compute_bytes(op.block);
  return exchanged(context.memory_of(op), whole / parts, whole, workload.compute);
}

/// Returns a block's gradient of a round, and what this rank gets of those of all replicas.
Exchanged reduced_gradients(const OpContext& context, const Op& op) {
  const plan::Workload& workload = context.resources.workload;
  const plan::Reduction reduction =
      plan::reduction_of(workload, workload.blocks[op.block].padded_parameters);
  return exchanged(context.memory_of(op), plan::bytes_of(reduction.given, workload.compute),
                   plan::bytes_of(reduction.got(), workload.compute), workload.compute);
}

/// Returns the gradients of what all ranks of a tensor group have: they end a block.
Exchanged shared_sums(const OpContext& context, const Op& op) {
  const OpMemory memory = context.memory_of(op);
  const plan::BlockShape& block = context.resources.workload.blocks[op.block];
  const std::size_t first = block.partial_first.value() * sizeof(float);
  const std::size_t bytes = (block.parameters - block.partial_first).value() * sizeof(float);
  const auto sums = memory.device(memory.target()).subspan(first, bytes);
  return {
      .source = {sums.address(), bytes}, .target = {sums.address(), bytes}, .dtype = DType::fp32};
}

/// Returns what passes of a tensor group have made, or what its ranks gather: tokens, or what they
/// know of them.
Exchanged buffers_of_passes(const OpContext& context, const Op& op) {
  const OpMemory memory = context.memory_of(op);
  const plan::Workload& workload = context.resources.workload;
  const bool scans = op.copied.what == plan::ValueKind::gathered_scans;
  const Bytes own = scans ? workload.scan_bytes : workload.boundary_bytes;
  const Bytes all = scans ? own * std::uint64_t{workload.tensor.count} : workload.summed_bytes;
  const Bytes given = op.kind == OpKind::all_gather ? own : all;
  const Bytes got = op.kind == OpKind::reduce_scatter ? own : all;
  return exchanged(memory, given, got, workload.compute);
}

/// Returns an activation, or its gradient, that goes from one stage of a pipeline to another.
Exchanged buffers_of_message(const OpContext& context, const Op& op) {
  const OpMemory memory = context.memory_of(op);
  const auto at = memory.device(memory.message(), op.bytes);
  const std::span<std::byte> bytes{at.address(), at.size()};
  return {.source = bytes, .target = bytes, .dtype = context.resources.workload.compute};
}

Exchanged buffers_of(const OpContext& context, const Op& op) {
  switch (op.group) {
    case plan::RankGroup::stages: return buffers_of_message(context, op);
    case plan::RankGroup::tensor: {
      const bool of_gradients = op.copied.what == plan::ValueKind::gradient_sum;
      return of_gradients ? shared_sums(context, op) : buffers_of_passes(context, op);
    }
    default: {
      const bool gathers = context.memory_of(op).reads(plan::ValueKind::parameters, op.block);
      return gathers ? gathered_parameters(context, op) : reduced_gradients(context, op);
    }
  }
}

}  // namespace

Ticket exchange(const OpContext& context, const Op& op) {
  return start_at(*context.resources.ranks.host(op.group), op, buffers_of(context, op));
}

void exchange(const OpContext& context, const Op& op, offload::Stream& stream) {
  start_at(*context.resources.ranks.gpu(op.group), op, buffers_of(context, op), stream.native());
}

}  // namespace spillway::engine
