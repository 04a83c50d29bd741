#include "tests/model/allocation_counter.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <new>

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
#define SPILLWAY_COUNTS_ALLOCATIONS 1
#else
#define SPILLWAY_COUNTS_ALLOCATIONS 0
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<int> counted{0};

/// Libraries such as oneDNN find this operator new as well; their calls come from another object.
[[maybe_unused]] void count_if_ours(const void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return;
  Dl_info from{};
  Dl_info here{};
  dladdr(caller, &from);
  dladdr(reinterpret_cast<const void*>(&counting), &here);
  if (from.dli_fbase == here.dli_fbase) ++counted;
}

}  // namespace

#if SPILLWAY_COUNTS_ALLOCATIONS
void* operator new(std::size_t size) {
  count_if_ours(__builtin_return_address(0));
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
#endif

namespace spillway::model {

AllocationCounter::AllocationCounter() {
  counted = 0;
  counting = true;
}
AllocationCounter::~AllocationCounter() { counting = false; }
bool AllocationCounter::works() { return SPILLWAY_COUNTS_ALLOCATIONS != 0; }
int AllocationCounter::count() const { return counted; }

}  // namespace spillway::model
