// StateOps: the ops that move tiles of state between the device, staging buffers and the disk, with
// the checksums of what is written, and commits. Control thread, but for `sum`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/step/op_context.hpp"
#include "runtime/engine/step/ticket_pairs.hpp"
#include "runtime/engine/step/tile_update.hpp"
#include "runtime/engine/step/worker_checksum.hpp"

namespace spillway::engine {

class StateOps {
 public:
  StateOps(OpContext& context, WorkerChecksum& checksum);

  /// Brings state that lives on the device, and the parameters that belong to it, to a staging
  /// buffer on its way to the disk.
  void copy_to_staging(const plan::Op& op, offload::Stream& stream);
  [[nodiscard]] Ticket read(const plan::Op& op);
  [[nodiscard]] Ticket write(const plan::Op& op);
  [[nodiscard]] Ticket commit();
  /// Sums what the tile's next write writes. Inside a worker's task.
  void sum(const plan::Op& op);
  /// Takes the sums of an update that has made them.
  void set_sums(std::uint32_t tile, const TileChecksums& sums) {
    state_checksums_[tile] = sums.state;
    parameter_checksums_[tile] = sums.parameters;
  }

  /// Whether a staging buffer holds the tile's newest state.
  [[nodiscard]] bool holds(const plan::Buffer& staging, std::uint32_t tile) const {
    return held_[staging.first] == tile;
  }
  /// Forgets what the staging buffers held, because somebody else has used them.
  void forget_staged() { std::ranges::fill(held_, kNoTile); }

 private:
  static constexpr std::uint32_t kNoTile = ~0U;

  /// Returns the state of an op's tile where the op reads it.
  [[nodiscard]] std::span<std::byte> state_of(const plan::Op& op) const;
  /// Returns the 16-bit parameters of a tile's slot where an op to the disk finds them.
  [[nodiscard]] std::span<const std::byte> parameters_to_write(const plan::Op& op) const;
  [[nodiscard]] Ticket write_slot(const plan::Op& op, nvme_swap::TileStore& store,
                                  TicketPairs& pairs);

  OpContext& context_;
  WorkerChecksum& checksum_;
  /// By tile, of what its next write to disk writes.
  std::vector<std::uint64_t> state_checksums_, parameter_checksums_;
  TicketPairs writes_, copy_writes_;  // by tile: its state and its parameters, to either store
  TicketPairs copies_;                // by tile, and one for the commit: to both stores
  std::vector<std::uint32_t> held_;   // by staging slot: the tile whose newest state lies in it
};

}  // namespace spillway::engine
