// BumpAllocator: hands out aligned pieces of a span of device memory one after the other, or only
// measures what they would take. The same code lays out and sizes a buffer, so the two cannot
// differ.
#pragma once

#include <cstddef>

#include "offload/device_span.hpp"
#include "runtime/base/dtype.hpp"
#include "runtime/base/units.hpp"

namespace spillway::model::blocks {

class BumpAllocator {
 public:
  /// Makes one that measures: every piece is an empty span.
  explicit BumpAllocator(DType compute) : compute_(compute) {}
  BumpAllocator(DType compute, offload::DeviceSpan<std::byte> space)
      : compute_(compute), space_(space), measuring_(false) {}

  /// Returns `count` elements of the compute dtype.
  offload::DeviceSpan<std::byte> elements(std::uint64_t count) {
    return bytes(count * size_of(compute_));
  }
  offload::DeviceSpan<float> floats(std::uint64_t count) {
    return bytes(count * sizeof(float)).template as<float>();
  }
  offload::DeviceSpan<std::byte> bytes(std::uint64_t count) {
    const std::uint64_t first = used_;
    used_ += round_up(count, kAlignment);
    if (measuring_) return {};
    return space_.subspan(first, count);
  }
  [[nodiscard]] Bytes used() const { return Bytes{used_}; }

 private:
  static constexpr std::uint64_t kAlignment = 64;
  DType compute_;
  offload::DeviceSpan<std::byte> space_;
  bool measuring_ = true;
  std::uint64_t used_ = 0;
};

}  // namespace spillway::model::blocks
