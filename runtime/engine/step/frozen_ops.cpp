#include "runtime/engine/step/frozen_ops.hpp"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::engine {

using plan::Op;

FrozenOps::FrozenOps(OpContext& context, WorkerChecksum& checksum)
    : context_(context),
      checksum_(checksum),
      tiles_(frozen_tiles(context.resources.memory)),
      chains_(context.resources.placement.frozen_staging),
      reads_(context.resources.placement.frozen_staging) {}

Ticket FrozenOps::read(const Op& op) {
  const OpMemory memory = context_.memory_of(op);
  const std::uint32_t staging = memory.target().first;
  const auto target = memory.host(memory.target()).first(op.bytes.value());
  context_.count(op, target.size());
  Ticket read = context_.resources.frozen_store->read(tiles_.tile_of(memory.source()), target);
  reads_[staging] = {.ticket = chains_.start(staging, std::move(read), {this, &op}),
                     .from = memory.source()};
  return {*this, staging};
}

Ticket FrozenOps::compare(const Op& op) {
  return context_.resources.workers.submit([this, &op] {
    const OpMemory memory = context_.memory_of(op);
    const auto read = memory.host(memory.target()).first(op.bytes.value());
    context_.resources.frozen_store->verify(tiles_.tile_of(memory.source()), checksum_.of(read));
  });
}

void FrozenOps::finish(std::uint32_t slot) {
  Read read = std::exchange(reads_[slot], {});
  try {
    read.ticket.wait();
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("frozen tensors of the block of \"{}\" cannot be read (tile {}): {}; "
                            "another program has changed the file, or the drive fails: start "
                            "again, which writes the file anew, and on another drive if that does "
                            "not help",
                            context_.resources.workload.blocks[read.from.first].name,
                            tiles_.tile_of(read.from).value(), error.what()),
                error.native());
  }
}

}  // namespace spillway::engine
