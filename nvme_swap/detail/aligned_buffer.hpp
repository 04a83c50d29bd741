// AlignedBuffer: page-aligned, zeroed bytes with one owner. Allocated at start only. Large ones lie
// in huge pages where the system gives them: a drive then sees few pieces, not one a page.
#pragma once

#include <sys/mman.h>

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
            std::aligned_alloc(unit(bytes), round_up(bytes > 0 ? bytes : 1, unit(bytes))))),
        bytes_(bytes) {
    if (data_ == nullptr) throw std::bad_alloc();
    // It is refused where there are none, which only costs speed.
    if (bytes >= kHugePageBytes) ::madvise(data_.get(), bytes, MADV_HUGEPAGE);
    std::memset(data_.get(), 0, bytes_);
  }

  [[nodiscard]] std::span<std::byte> bytes() { return {data_.get(), bytes_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), bytes_}; }

 private:
  static constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
  [[nodiscard]] static std::size_t unit(std::size_t bytes) {
    return bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  }

  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
};

}  // namespace spillway::nvme_swap::detail
