// ActivationOps: the ops that move saved tensors between staging buffers and the disk: half of each
// on the workers, which sum what is moved, and half on the disk. Control thread.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/engine/step/buffer_tiles.hpp"
#include "runtime/engine/step/op_context.hpp"
#include "runtime/engine/step/ticket_chains.hpp"
#include "runtime/engine/step/worker_checksum.hpp"

namespace spillway::engine {

class ActivationOps {
 public:
  ActivationOps(OpContext& context, WorkerChecksum& checksum);

  /// Starts the workers' checksum, and then the write to disk.
  [[nodiscard]] Ticket spill(const plan::Op& op);
  /// Starts the read from disk, and then the workers' comparison.
  [[nodiscard]] Ticket fetch(const plan::Op& op);

 private:
  /// The second half of an op.
  struct SecondHalf {
    ActivationOps* ops = nullptr;
    const plan::Op* op = nullptr;
    Ticket operator()() const {
      return op->copied.to == plan::Tier::nvme ? ops->write(*op) : ops->verify(*op);
    }
  };

  [[nodiscard]] Ticket write(const plan::Op& op);
  [[nodiscard]] Ticket verify(const plan::Op& op);
  /// Returns the number of a staging buffer among those of boundaries and of saved activations.
  [[nodiscard]] std::uint32_t staging_number(const plan::Buffer& staging) const;

  OpContext& context_;
  WorkerChecksum& checksum_;
  const BufferTiles tiles_;
  // By staging buffer, of boundaries first:
  TicketChains<SecondHalf> moves_;
  std::vector<std::uint64_t> checksums_;
};

}  // namespace spillway::engine
