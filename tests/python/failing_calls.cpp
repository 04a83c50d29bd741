// Makes one operator new of the extension fail, or one call on files of the process. A process that
// has this library in LD_PRELOAD arms it by the functions at the end.
#include <fcntl.h>
#include <link.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>

#include "tests/support/failing_file_call.hpp"

// 1: the thread has the interpreter's lock. Only a process of Python has the function.
extern "C" int PyGILState_Check() __attribute__((weak));

namespace {

using spillway::test_support::FailingTurn;
using spillway::test_support::file_call_turn;

constinit FailingTurn allocation_turn;

// Where the extension's code lies, whose allocations fail. PyTorch could not bear it. Nor could
// nanobind, which converts arguments in functions that must not throw: it holds the interpreter's
// lock then, and what is asked for with that lock succeeds.
std::atomic<std::uintptr_t> code_begin{0};
std::atomic<std::uintptr_t> code_end{0};

int find_code(dl_phdr_info* library, std::size_t, void*) {
  if (std::strstr(library->dlpi_name, "_native.") == nullptr) return 0;
  for (const auto& part : std::span(library->dlpi_phdr, library->dlpi_phnum)) {
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    code_begin = library->dlpi_addr + part.p_vaddr;
    code_end = code_begin + part.p_memsz;
  }
  return 1;
}

void* allocate(std::size_t size, std::size_t alignment, const void* caller) {
  const auto at = reinterpret_cast<std::uintptr_t>(caller);
  const bool is_ours = at >= code_begin.load(std::memory_order_relaxed) &&
                       at < code_end.load(std::memory_order_relaxed);
  if (is_ours && PyGILState_Check() == 0 && allocation_turn.comes()) return nullptr;
  return alignment == 0 ? std::malloc(size)
                        : std::aligned_alloc(alignment, (size + alignment - 1) & -alignment);
}

void* allocated(void* memory) { return memory != nullptr ? memory : throw std::bad_alloc(); }

FailingTurn& turn_of(bool on_files) { return on_files ? file_call_turn : allocation_turn; }

}  // namespace

void* operator new(std::size_t size) {
  return allocated(allocate(size, 0, __builtin_return_address(0)));
}
void* operator new[](std::size_t size) {
  return allocated(allocate(size, 0, __builtin_return_address(0)));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocated(
      allocate(size, static_cast<std::size_t>(alignment), __builtin_return_address(0)));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, 0, __builtin_return_address(0));
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, 0, __builtin_return_address(0));
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

/// Makes the engine read and write by the calls that can fail.
extern "C" int io_uring_queue_init_params(unsigned, void*, void*) { return -ENOSYS; }
extern "C" int io_setup(int, void*) { return -ENOSYS; }

extern "C" int open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const auto mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return ::openat(AT_FDCWD, path, flags, mode);
}

/// Makes the call fail that comes after so many, while calls are watched.
extern "C" void spillway_test_fail(bool on_files, std::int64_t successes) {
  dl_iterate_phdr(&find_code, nullptr);
  turn_of(on_files).begin(successes);
}
extern "C" void spillway_test_watch(bool on_files, bool on) { turn_of(on_files).watch(on); }
extern "C" std::int64_t spillway_test_left(bool on_files) { return turn_of(on_files).left(); }
