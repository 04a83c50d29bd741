// The ops of many ranks: what an op reads goes to the others, what it writes comes from them.
#include "runtime/engine/step/op_actions.hpp"

namespace spillway::engine {

using plan::Op;
using plan::OpKind;

/// The device's memory is the process's own: StepEngine refuses ranks on any other.
Ticket OpActions::collective(const Op& op) {
  const OpMemory memory = memory_of(op);
  const plan::Workload& workload = resources_.workload;
  comm::Communicator& ranks = *resources_.ranks;
  const bool of_parameters = memory.reads(plan::ValueKind::parameters, op.block);
  const std::uint64_t whole = compute_bytes(op.block).value();
  const std::uint64_t given = of_parameters ? whole / workload.shards() : whole;
  const auto view = [&](const plan::Buffer& buffer, std::uint64_t bytes) {
    return std::span(memory.device(buffer, Bytes{bytes}).address(), bytes);
  };
  const auto source = view(memory.source(), given);
  switch (op.kind) {
    case OpKind::all_gather:
      return ranks.all_gather(source, view(memory.target(), given * workload.ranks.count));
    case OpKind::reduce_scatter:
      return ranks.reduce_scatter(source, view(memory.target(), given / workload.ranks.count),
                                  {.addend = workload.compute, .result = workload.compute});
    case OpKind::all_to_all: return ranks.all_to_all(source, view(memory.target(), given));
    default: return ranks.all_reduce(source, workload.compute);
  }
}

}  // namespace spillway::engine
