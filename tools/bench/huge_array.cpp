#include "tools/bench/huge_array.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "runtime/base/error.hpp"
#include "runtime/base/stagger.hpp"

namespace spillway::bench {

HugeArray::HugeArray(std::size_t bytes, std::size_t offset)
    : mapped_(round_up(std::max<std::size_t>(offset + bytes, 1), kHugePageBytes) + kHugePageBytes) {
  void* const mapping =
      ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("no memory for an array of {} bytes; give a smaller --size", bytes),
                errno);
  }
  mapping_ = static_cast<std::byte*>(mapping);
  const auto address = reinterpret_cast<std::uintptr_t>(mapping);
  data_ = mapping_ + (round_up(address, kHugePageBytes) - address) + offset;
  // A hint: without huge pages the figures are some percent lower, not wrong.
  static_cast<void>(::madvise(mapping_, mapped_, MADV_HUGEPAGE));
}

HugeArray::~HugeArray() { ::munmap(mapping_, mapped_); }

}  // namespace spillway::bench
