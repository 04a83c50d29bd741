// UpdateOps: the ops of gradients and of the update that follows from them, on the device and on
// the host. Called where the compute stream runs, or inside a worker's task.
#pragma once

#include <array>
#include <cstdint>
#include <tuple>

#include "runtime/engine/step/op_context.hpp"
#include "runtime/engine/step/state_ops.hpp"
#include "runtime/engine/step/tile_update.hpp"

namespace spillway::engine {

class UpdateOps {
 public:
  /// `state` gets the checksums of tiles on their way to the disk.
  UpdateOps(const OpContext& context, StateOps& state);

  // On the device
  void round_gradient(const plan::Op& op) const;
  void device_norm(const plan::Op& op) const;
  void device_update(const plan::Op& op) const;

  // On the host
  void add_gradient(const plan::Op& op) const;
  void host_norm(const plan::Op& op) const;
  void host_update(const plan::Op& op);

 private:
  /// Returns the range of an update, in place, of a tile whose arrays begin at these addresses.
  [[nodiscard]] cpu_adam::UpdateRange tile_range(std::uint32_t tile, std::byte* state,
                                                 const std::byte* gradient,
                                                 std::byte* parameters) const;
  using Groups = std::array<cpu_adam::ParameterGroup, std::tuple_size_v<BlockGroups>>;
  /// Returns the update that the op is part of.
  [[nodiscard]] const PendingUpdate& update_of(const plan::Op& op) const {
    return op.speculative ? context_.decisions->ahead : context_.decisions->update;
  }
  /// Returns the parts of the op's block with the scalars of their groups.
  [[nodiscard]] Groups groups_of(const plan::Op& op) const;

  const OpContext& context_;
  StateOps& state_;
  const cpu_adam::Kernel& kernel_;
  UpdateTypes types_;
  TileUpdate tile_update_;
};

}  // namespace spillway::engine
