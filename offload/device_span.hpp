// DeviceSpan: a view of device memory. It never owns, and host code cannot read through it.
#pragma once

#include <cstddef>
#include <type_traits>

#include "runtime/base/error.hpp"

namespace spillway::offload {

/// Views `size()` elements at a device address. No operator[] and no operator*: dereferencing on
/// the host does not compile. Kernels, and the host backend's tasks, take `address()`.
template <class T>
class DeviceSpan {
 public:
  constexpr DeviceSpan() = default;
  constexpr DeviceSpan(T* address, std::size_t size) : address_(address), size_(size) {}
  /// Adds constness to the element, never removes it.
  template <class U>
    requires(std::is_same_v<const U, T> && !std::is_same_v<U, T>)
  constexpr DeviceSpan(DeviceSpan<U> other)  // NOLINT(google-explicit-constructor): as std::span
      : address_(other.address()), size_(other.size()) {}

  [[nodiscard]] constexpr T* address() const { return address_; }
  [[nodiscard]] constexpr std::size_t size() const { return size_; }
  [[nodiscard]] constexpr std::size_t size_bytes() const { return size_ * sizeof(T); }
  [[nodiscard]] constexpr bool empty() const { return size_ == 0; }

  [[nodiscard]] constexpr DeviceSpan subspan(std::size_t first, std::size_t count) const {
    SPILLWAY_ASSERT(first <= size_ && count <= size_ - first);
    return {address_ + first, count};
  }

  /// Returns the same bytes seen as another element type. The address is aligned for it by
  /// construction.
  template <class U>
  [[nodiscard]] DeviceSpan<U> as() const {
    static_assert(std::is_const_v<U> || !std::is_const_v<T>, "a view never removes const");
    return {reinterpret_cast<U*>(address_), size_bytes() / sizeof(U)};
  }

 private:
  T* address_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace spillway::offload
