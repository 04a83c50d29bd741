#include "tests/offload/allocation_counter.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace spillway::testing {
namespace {

std::atomic<std::uint64_t> count{0};

void* allocate(std::size_t size, std::size_t alignment) noexcept {
  count.fetch_add(1, std::memory_order_relaxed);
  const std::size_t wanted = size == 0 ? 1 : size;
  if (alignment <= alignof(std::max_align_t)) return std::malloc(wanted);
  void* address = nullptr;
  return ::posix_memalign(&address, alignment, wanted) == 0 ? address : nullptr;
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  void* const address = allocate(size, alignment);
  if (address == nullptr) throw std::bad_alloc();
  return address;
}

}  // namespace

std::uint64_t allocations_so_far() { return count.load(std::memory_order_relaxed); }

}  // namespace spillway::testing

// All forms, so that memory of one is never freed by another's allocator.
using spillway::testing::allocate;
using spillway::testing::allocate_or_throw;
void* operator new(std::size_t size) { return allocate_or_throw(size, 1); }
void* operator new[](std::size_t size) { return allocate_or_throw(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* address) noexcept { std::free(address); }
void operator delete[](void* address) noexcept { std::free(address); }
void operator delete(void* address, std::size_t) noexcept { std::free(address); }
void operator delete[](void* address, std::size_t) noexcept { std::free(address); }
void operator delete(void* address, std::align_val_t) noexcept { std::free(address); }
void operator delete[](void* address, std::align_val_t) noexcept { std::free(address); }
void operator delete(void* address, std::size_t, std::align_val_t) noexcept { std::free(address); }
void operator delete[](void* address, std::size_t, std::align_val_t) noexcept {
  std::free(address);
}
void operator delete(void* address, const std::nothrow_t&) noexcept { std::free(address); }
void operator delete[](void* address, const std::nothrow_t&) noexcept { std::free(address); }
