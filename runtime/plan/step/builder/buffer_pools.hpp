// BufferPools: the buffers that come and go while a list is built.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "runtime/plan/buffers.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

class BufferPools {
 public:
  explicit BufferPools(const Workload& workload) : workload_(workload), narrow_slots_(workload) {}

  /// Frees all buffers that the placement has.
  void open(const Placement& placement);
  /// Returns the buffer of the pool that has been free for longest.
  Buffer take_free(PoolKind pool);
  /// Takes a gradient slot that is large enough for the block; for the vectors of tiles, their own.
  /// In micro-batch-major order, where each block has a slot, leaves the first to the only block
  /// that fits no other.
  Buffer take_slot(PoolKind pool, std::uint32_t block);
  void give_back(const Buffer& buffer);  ///< No effect on one that never comes and goes.
  /// Returns the vectors' own buffer in a pool of gradients, behind those that come and go.
  [[nodiscard]] Buffer of_vectors(PoolKind pool) const { return {pool, gradient_slots_}; }

 private:
  void open(PoolKind pool, std::uint32_t buffers);

  const Workload& workload_;
  const NarrowSlots narrow_slots_;
  std::uint32_t gradient_slots_ = 0;
  bool leaves_first_ = false;
  std::array<std::deque<std::uint32_t>, kPoolCount> free_;  // by pool, free for longest first
};

}  // namespace spillway::plan
