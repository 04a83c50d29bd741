// FrozenOps: reads of what is frozen of a block from the disk to a staging buffer, each compared
// with its checksum by the workers. Control thread.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/engine/step/buffer_tiles.hpp"
#include "runtime/engine/step/op_context.hpp"
#include "runtime/engine/step/ticket_chains.hpp"
#include "runtime/engine/step/worker_checksum.hpp"

namespace spillway::engine {

class FrozenOps final : public TicketSource {
 public:
  FrozenOps(OpContext& context, WorkerChecksum& checksum);

  /// Starts the read, and then the workers' comparison.
  [[nodiscard]] Ticket read(const plan::Op& op);

  [[nodiscard]] bool ready(std::uint32_t slot) override { return reads_[slot].ticket.ready(); }
  /// Its error names the block, by its first tensor, and what to do.
  void finish(std::uint32_t slot) override;

 private:
  struct Comparison {
    FrozenOps* ops = nullptr;
    const plan::Op* op = nullptr;
    Ticket operator()() const { return ops->compare(*op); }
  };
  struct Read {
    Ticket ticket{};
    plan::Buffer from{};
  };

  [[nodiscard]] Ticket compare(const plan::Op& op);

  OpContext& context_;
  WorkerChecksum& checksum_;
  const BufferTiles tiles_;
  // By staging buffer:
  TicketChains<Comparison> chains_;
  std::vector<Read> reads_;
};

}  // namespace spillway::engine
