// Homes: all memory of a run, allocated once, one allocation for each line of the plan's memory
// table. Every other part of the engine asks here where a thing lives. Control thread only; the
// views may be used by any thread while this object lives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "offload/memory.hpp"
#include "runtime/engine/boundary_homes.hpp"
#include "runtime/engine/internals_homes.hpp"
#include "runtime/engine/state_slots.hpp"
#include "runtime/plan/placement.hpp"

namespace spillway::engine {

class Homes {
 public:
  /// Throws `Error{out_of_memory}` if the backend's budget is below `plan::memory_items`.
  Homes(const plan::Workload& workload, const plan::Placement& placement,
        offload::DeviceBackend& backend);

  [[nodiscard]] const StateSlots& slots() const { return slots_; }
  [[nodiscard]] BoundaryHomes& boundaries() { return boundaries_; }
  [[nodiscard]] InternalsHomes& internals() { return internals_; }
  [[nodiscard]] std::span<const plan::Tile> tiles() const { return slots_.tiles(); }
  [[nodiscard]] std::span<const std::uint32_t> tiles_of(std::uint32_t block) const;

  // Device. `slot` is an op's; kNoSlot means the resident home.
  [[nodiscard]] offload::DeviceSpan<std::byte> parameters(std::uint32_t block, std::uint32_t slot);
  [[nodiscard]] offload::DeviceSpan<float> accumulator(std::uint32_t block, std::uint32_t slot);
  /// The round's gradient in the compute dtype: the accumulator itself when that is fp32.
  [[nodiscard]] offload::DeviceSpan<std::byte> rounded(std::uint32_t block, std::uint32_t slot);
  [[nodiscard]] offload::DeviceSpan<float> tied_accumulator() {
    return tied_accumulator_.device().as<float>();
  }
  [[nodiscard]] offload::DeviceSpan<std::byte> device_gradient(std::uint32_t block);
  [[nodiscard]] offload::DeviceSpan<std::byte> device_state(std::uint32_t tile);
  [[nodiscard]] offload::DeviceSpan<double> device_leaves(std::uint32_t tile);
  /// What tiles leave each other; empty without tiles.
  [[nodiscard]] offload::DeviceSpan<std::byte> carried(std::uint32_t m);
  /// The gradient slot of the vectors that tiles share.
  [[nodiscard]] std::uint32_t vectors_slot() const { return placement_.gradient_slots; }
  [[nodiscard]] offload::DeviceSpan<std::byte> workspace() { return workspace_.device(); }
  [[nodiscard]] offload::DeviceSpan<std::int32_t> tokens(std::uint32_t m);
  [[nodiscard]] offload::DeviceSpan<double> loss_sum(std::uint32_t round, std::uint32_t m);
  [[nodiscard]] offload::DeviceSpan<double> all_loss_sums() {
    return loss_sums_.device().as<double>();
  }

  // Host.
  [[nodiscard]] std::span<std::byte> host_parameters(std::uint32_t block);
  [[nodiscard]] std::span<std::byte> host_gradient(std::uint32_t block);
  [[nodiscard]] std::span<std::byte> landing(std::uint32_t block, std::uint32_t slot);
  /// The part of `host_parameters` or of the resident ones that belongs to `tile`.
  [[nodiscard]] std::span<std::byte> host_parameters_of_tile(std::uint32_t tile);
  [[nodiscard]] offload::DeviceSpan<std::byte> device_parameters_of_tile(std::uint32_t tile);
  [[nodiscard]] std::span<std::byte> host_state(std::uint32_t tile);
  /// Room for a whole slot of `tile`.
  [[nodiscard]] std::span<std::byte> staging(std::uint32_t tile, std::uint32_t slot);
  /// All slots that `staging` gives out.
  [[nodiscard]] std::span<std::byte> all_staging() { return staging_.host(); }
  /// Inputs then targets of one micro-batch.
  [[nodiscard]] std::span<std::int32_t> host_tokens(std::uint32_t round, std::uint32_t m);
  [[nodiscard]] std::span<double> leaves_of_block(std::uint32_t block);
  [[nodiscard]] std::span<double> leaves_of_tile(std::uint32_t tile);
  [[nodiscard]] std::span<double> host_loss_sums();

 private:
  [[nodiscard]] std::uint64_t padded(std::uint32_t block) const {
    return workload_.blocks[block].padded_parameters.value();
  }
  [[nodiscard]] std::size_t compute_size() const { return size_of(workload_.compute); }
  [[nodiscard]] std::uint64_t state_size(std::uint32_t tile) const;
  void allocate_device(offload::DeviceBackend& backend);
  void allocate_host(offload::DeviceBackend& backend);

  const plan::Workload& workload_;
  const plan::Placement& placement_;
  StateSlots slots_;
  BoundaryHomes boundaries_;
  InternalsHomes internals_;
  std::vector<std::vector<std::uint32_t>> tiles_of_block_;

  // Byte offsets of a block or tile in the allocation named alike.
  std::vector<std::uint64_t> resident_at_, device_gradient_at_, device_state_at_, device_leaves_at_,
      host_parameters_at_, host_gradient_at_, host_state_at_, leaves_at_;

  offload::DeviceMemory resident_, parameter_slots_, device_state_, accumulators_, rounded_,
      tied_accumulator_, device_gradient_, device_leaves_, carried_, workspace_, tokens_,
      loss_sums_;
  offload::PinnedMemory host_parameters_, host_gradient_, landing_, host_state_, staging_,
      host_tokens_, sums_;
};

}  // namespace spillway::engine
