// Host memory that the driver would not pin, and the pinned buffer through which streams copy it:
// a host function of the stream moves each piece between the two, so that the copy is in the
// stream's order and nobody waits for it. It is slower than a copy of pinned memory.
//
// The buffer is pinned when memory is refused for the first time: a half, a quarter, ... of its
// size where no more is pinned by then. It has a slot for each of a few streams, and is of the
// memory that a plan leaves to the process itself. Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "offload/cuda/detail/cuda_api.hpp"
#include "runtime/base/mutex.hpp"

namespace spillway::offload::cuda {

class PageableMemory {
 public:
  /// Streams of a backend that copy: upload, download, and what tests and calibration add.
  static constexpr std::size_t kSlots = 8;

  struct Options {
    std::size_t buffer = 0;  ///< bytes of all slots at most; a slot is whole pages
    std::size_t piece = 0;   ///< as that of a PinnedRequest
  };
  /// `api` outlives this.
  PageableMemory(CudaApi& api, const Options& options) : api_(api), options_(options) {}
  ~PageableMemory();
  PageableMemory(const PageableMemory&) = delete;
  PageableMemory& operator=(const PageableMemory&) = delete;

  /// Takes note of memory that the driver refused with `reason`, and logs the first time. Returns
  /// false where the driver pins no buffer either.
  [[nodiscard]] bool adopt(std::byte* address, std::size_t size, const std::string& reason)
      SPILLWAY_EXCLUDES(mutex_);
  /// Forgets it. Returns false for memory that was not adopted.
  bool forget(std::byte* address) noexcept SPILLWAY_EXCLUDES(mutex_);
  [[nodiscard]] bool holds(const std::byte* address) const SPILLWAY_EXCLUDES(mutex_);

  /// Returns a slot that nobody else has until it is given back; empty where all are out.
  [[nodiscard]] std::span<std::byte> take_slot() SPILLWAY_EXCLUDES(mutex_);
  void give_back(std::span<std::byte> slot) noexcept SPILLWAY_EXCLUDES(mutex_);

 private:
  /// Pins the buffer if it is not there. Returns whether it is.
  [[nodiscard]] bool start() SPILLWAY_REQUIRES(mutex_);

  CudaApi& api_;
  const Options options_;
  mutable Mutex mutex_;
  std::map<const std::byte*, std::size_t> ranges_ SPILLWAY_GUARDED_BY(mutex_);
  std::span<std::byte> buffer_ SPILLWAY_GUARDED_BY(mutex_);
  std::array<bool, kSlots> taken_ SPILLWAY_GUARDED_BY(mutex_) = {};
};

}  // namespace spillway::offload::cuda
