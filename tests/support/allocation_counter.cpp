#include "tests/support/allocation_counter.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>

#include <atomic>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
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

namespace spillway::test_support {
constinit FailingTurn allocation_turn;
}  // namespace spillway::test_support

namespace {

std::atomic<bool> counting{false};
std::atomic<int> allocation_count{0};
std::atomic<int> open_count{0};

/// Whether one of the callers is in a library, and in a function, with names that have these parts.
bool is_called_from(const char* library, const char* function) {
  constexpr int kDepth = 16;
  void* callers[kDepth];
  const int depth = ::backtrace(callers, kDepth);
  for (int i = 0; i < depth; ++i) {
    Dl_info from{};
    if (dladdr(callers[i], &from) == 0 || from.dli_fname == nullptr) continue;
    const char* name = from.dli_sname == nullptr ? "" : from.dli_sname;
    if (std::strstr(from.dli_fname, library) && std::strstr(name, function)) return true;
  }
  return false;
}

/// oneDNN finds this operator new as well, often through the standard library's templates: what any
/// caller in it asks for is its own affair.
[[maybe_unused]] void count_allocation() {
  if (!counting.load(std::memory_order_relaxed)) return;
  if (!is_called_from("libdnnl", "")) ++allocation_count;
}

/// Throws if it is the turn of the allocation that fails. Paths of libstdc++ 12 free what is not
/// theirs where an allocation of their own fails: these succeed, and the next one fails.
[[maybe_unused]] void fail_in_turn() {
  using spillway::test_support::allocation_turn;
  if (!allocation_turn.comes()) return;
  if (!is_called_from("libstdc++", "10filesystem")) throw std::bad_alloc();
  allocation_turn.begin(0);
}

}  // namespace

#if SPILLWAY_COUNTS_ALLOCATIONS
void* operator new(std::size_t size) {
  fail_in_turn();
  count_allocation();
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  fail_in_turn();
  count_allocation();
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* p = std::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return p;
  throw std::bad_alloc();
}
// The array forms of the C++ library call these.
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

// The linker prefers these to the C library's for every call from outside the C library.
extern "C" int open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const auto mode = va_arg(arguments, mode_t);
  va_end(arguments);
  if (counting.load(std::memory_order_relaxed)) ++open_count;
  return ::openat(AT_FDCWD, path, flags, mode);
}
#endif

namespace spillway::test_support {

AllocationCounter::AllocationCounter() {
  void* caller = nullptr;
  ::backtrace(&caller, 1);  // loads what it needs, allocating, before anything is counted
  allocation_count = 0;
  open_count = 0;
  counting = true;
}
AllocationCounter::~AllocationCounter() { counting = false; }
bool AllocationCounter::works() { return SPILLWAY_COUNTS_ALLOCATIONS != 0; }
int AllocationCounter::allocations() const { return allocation_count; }
int AllocationCounter::opens() const { return open_count; }

}  // namespace spillway::test_support
