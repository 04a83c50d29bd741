#include "tools/bench/huge_array.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/error.hpp"
#include "runtime/base/units.hpp"

namespace spillway::bench {

HugeArray::HugeArray(std::size_t bytes)
    : size_(round_up(std::max<std::size_t>(bytes, 1), 2u << 20)), data_(nullptr) {
  void* const mapping =
      ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("no memory for an array of {} bytes; give a smaller --size", size_),
                errno);
  }
  data_ = static_cast<std::byte*>(mapping);
  // A hint: without huge pages the figures are some percent lower, not wrong.
  static_cast<void>(::madvise(data_, size_, MADV_HUGEPAGE));
}

HugeArray::~HugeArray() { ::munmap(data_, size_); }

}  // namespace spillway::bench
