// AlignedBuffer: page-aligned, zeroed bytes with one owner. Allocated at start only.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#include "runtime/base/units.hpp"

namespace spillway::nvme_swap::detail {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes)
      : data_(static_cast<std::byte*>(
            std::aligned_alloc(kPageBytes, round_up(bytes > 0 ? bytes : 1, kPageBytes)))),
        bytes_(bytes) {
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(data_.get(), 0, bytes_);
  }

  [[nodiscard]] std::span<std::byte> bytes() { return {data_.get(), bytes_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
};

}  // namespace spillway::nvme_swap::detail
