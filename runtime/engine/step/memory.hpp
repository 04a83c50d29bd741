// Memory: all memory of a run, allocated once: one allocation for each pool of its placement, and
// so for each line of the plan's memory table. A buffer's address follows from the pool's layout.
// Control thread only; the views may be used by any thread while this object lives.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "offload/memory.hpp"
#include "runtime/plan/placement/pools.hpp"

namespace spillway::engine {

/// Pages of files in which pools lie that other processes map too. Absent: the pool is this one's.
struct SharedPools {
  std::optional<offload::SharedPages> parameters{};  ///< host_parameters
  std::optional<offload::SharedPages> frozen{};      ///< host_frozen
};

class Memory {
 public:
  /// Allocates the pools, except the model's constants, which belong to StepEngine. Throws
  /// `Error{out_of_memory}` if the backend's budget is below `plan::memory_items`. A child made by
  /// fork() has, of the host's pools, only the parameters and the frozen tensors. Throws
  /// `Error{invalid_argument}` if shared pages are not as many bytes as their pool.
  Memory(plan::Pools pools, offload::DeviceBackend& backend, const SharedPools& shared = {});

  /// Returns the bytes of a buffer, or of several in a row, of a pool on the device.
  [[nodiscard]] offload::DeviceSpan<std::byte> device(const plan::Buffer& buffer) const;
  /// Returns the same of a pool on the host.
  [[nodiscard]] std::span<std::byte> host(const plan::Buffer& buffer) const;
  /// Returns all buffers of a pool on the device; the constants are not among them.
  [[nodiscard]] offload::DeviceSpan<std::byte> all_device(plan::PoolKind pool) const;
  /// Returns the same of a pool on the host.
  [[nodiscard]] std::span<std::byte> all_host(plan::PoolKind pool) const;
  /// Gives the memory of a pool away, and with it all its buffers.
  [[nodiscard]] offload::DeviceMemory take_device(plan::PoolKind pool);
  [[nodiscard]] offload::PinnedMemory take_host(plan::PoolKind pool);
  /// Frees all memory of the device, contents and all. Nothing may ask for a buffer there until
  /// `restore_device`, which takes as much again; where that throws `Error{out_of_memory}` it has
  /// taken nothing.
  void release_device() noexcept;
  void restore_device();
  [[nodiscard]] const plan::Pool& pool(plan::PoolKind pool) const {
    return pools_[static_cast<std::size_t>(pool)];
  }

 private:
  plan::Pools pools_;
  offload::DeviceBackend& backend_;
  std::array<offload::DeviceMemory, plan::kPoolCount> device_;
  std::array<offload::PinnedMemory, plan::kPoolCount> host_;
};

}  // namespace spillway::engine
