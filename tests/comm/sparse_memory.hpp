// Memory of which only the touched pages exist, for transfers that are larger than a test may be.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <span>

#include "runtime/base/error.hpp"

namespace spillway::comm {

class SparseMemory {
 public:
  explicit SparseMemory(std::size_t size) : size_(size) {
    void* const address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(address != MAP_FAILED, ErrorCode::out_of_memory, "mmap");
    data_ = static_cast<std::byte*>(address);
  }
  ~SparseMemory() { ::munmap(data_, size_); }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  [[nodiscard]] std::span<std::byte> span() const { return {data_, size_}; }

 private:
  std::byte* data_;
  std::size_t size_;
};

}  // namespace spillway::comm
