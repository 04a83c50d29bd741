// StagingPool and StagingLease: pinned buffers of one size, borrowed for one move and given back by
// the lease's end.
//
// Threads: the control thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "offload/memory.hpp"

namespace spillway::offload {

class StagingPool;

/// One buffer of a pool, which must outlive it. Move-only; returns itself. Keep it beside the
/// ticket or event of the move that uses it: no buffer may return while somebody still writes to
/// it.
class [[nodiscard]] StagingLease {
 public:
  StagingLease() = default;
  StagingLease(StagingLease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), slot_(other.slot_) {}
  StagingLease& operator=(StagingLease&& other) noexcept {
    if (this != &other) {
      release();
      pool_ = std::exchange(other.pool_, nullptr);
      slot_ = other.slot_;
    }
    return *this;
  }
  StagingLease(const StagingLease&) = delete;
  StagingLease& operator=(const StagingLease&) = delete;
  ~StagingLease() { release(); }

  explicit operator bool() const { return pool_ != nullptr; }
  /// The buffer's `slot_bytes`, page-aligned. Only of a lease that holds a buffer.
  [[nodiscard]] std::span<std::byte> bytes() const;
  /// Number of this buffer in the pool, for I/O engines that register them.
  [[nodiscard]] std::uint32_t slot() const { return slot_; }
  /// Gives the buffer back now.
  void release() noexcept;

 private:
  friend class StagingPool;
  StagingLease(StagingPool& pool, std::uint32_t slot) : pool_(&pool), slot_(slot) {}

  StagingPool* pool_ = nullptr;
  std::uint32_t slot_ = 0;
};

struct StagingPoolOptions {
  std::uint32_t slots;
  Bytes slot_bytes;
};

/// Buffers that a pool has lent.
struct StagingPoolUsage {
  std::uint32_t current;
  std::uint32_t high_water;
  std::uint32_t slots;
};

/// Owns `slots` equal buffers in one pinned allocation, taken at construction. Leases point to it,
/// so it neither moves nor copies, and destroying it with a lease out is a broken invariant.
class StagingPool {
 public:
  StagingPool(DeviceBackend& backend, const StagingPoolOptions& options);
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  /// Bytes of pinned memory that a pool of these options takes: every buffer starts on a page, and
  /// the last one is not padded.
  [[nodiscard]] static Bytes storage_bytes(const StagingPoolOptions& options);

  /// Lends a buffer, or nothing when all are out. The buffer given back last comes first: it is
  /// warm.
  [[nodiscard]] std::optional<StagingLease> try_lease();

  [[nodiscard]] StagingPoolUsage usage() const;
  /// All buffers, `slot_stride()` apart, for I/O engines that register them.
  [[nodiscard]] std::span<std::byte> storage() const { return storage_.host(); }
  [[nodiscard]] Bytes slot_stride() const;
  [[nodiscard]] Bytes slot_bytes() const { return options_.slot_bytes; }

 private:
  friend class StagingLease;
  [[nodiscard]] std::span<std::byte> bytes_of(std::uint32_t slot) const;
  void give_back(std::uint32_t slot) noexcept;

  const StagingPoolOptions options_;
  PinnedMemory storage_;
  std::vector<std::uint32_t> free_;  ///< a stack; its capacity is all slots from the start
  std::uint32_t high_water_ = 0;
};

}  // namespace spillway::offload
