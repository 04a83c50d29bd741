// Owners of device and pinned memory.
#pragma once

#include <span>
#include <utility>

#include "offload/device_backend.hpp"

namespace spillway::offload {

/// Owns one allocation of `kind` from a backend, which must outlive it. Move-only.
template <MemoryKind kind>
class Memory {
 public:
  Memory() = default;
  Memory(DeviceBackend& backend, Bytes size)
      : backend_(&backend), address_(backend.allocate(kind, size)), size_(size) {}
  /// Owns a mapping of a file's pages.
  Memory(DeviceBackend& backend, const SharedPages& pages)
    requires(kind == MemoryKind::pinned)
      : backend_(&backend), address_(backend.map_shared(pages)), size_(pages.bytes()) {}
  Memory(Memory&& other) noexcept
      : backend_(std::exchange(other.backend_, nullptr)),
        address_(std::exchange(other.address_, nullptr)),
        size_(std::exchange(other.size_, Bytes{})) {}
  Memory& operator=(Memory&& other) noexcept {
    if (this != &other) {
      release();
      backend_ = std::exchange(other.backend_, nullptr);
      address_ = std::exchange(other.address_, nullptr);
      size_ = std::exchange(other.size_, Bytes{});
    }
    return *this;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { release(); }

  [[nodiscard]] Bytes size() const { return size_; }

  [[nodiscard]] DeviceSpan<std::byte> device() const
    requires(kind == MemoryKind::device)
  {
    return {address_, size_.value()};
  }
  [[nodiscard]] std::span<std::byte> host() const
    requires(kind == MemoryKind::pinned)
  {
    return {address_, size_.value()};
  }

 private:
  void release() noexcept {
    if (backend_ != nullptr) backend_->deallocate(kind, address_, size_);
    backend_ = nullptr;
  }

  DeviceBackend* backend_ = nullptr;
  std::byte* address_ = nullptr;
  Bytes size_;
};

using DeviceMemory = Memory<MemoryKind::device>;
using PinnedMemory = Memory<MemoryKind::pinned>;

/// Lets children that fork() makes from here on have a copy of `memory`. Where it is pinned, each
/// fork copies it at once. Throws `Error{out_of_memory}` if the system refuses.
void show_to_children(const PinnedMemory& memory);

/// Gives `owner` memory of `size`; none where that is 0.
template <MemoryKind kind>
void allocate(Memory<kind>& owner, DeviceBackend& backend, Bytes size) {
  if (size > Bytes{}) owner = Memory<kind>(backend, size);
}

}  // namespace spillway::offload
