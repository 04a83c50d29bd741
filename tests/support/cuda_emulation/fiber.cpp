// To be compiled without sanitizers, which are told of every change instead.
#include "tests/support/cuda_emulation/fiber.hpp"

#include <sys/mman.h>
#include <ucontext.h>

#include "tests/support/cuda_emulation/grid.hpp"

// The sanitizers' names; nothing where the program is built without them.
extern "C" {
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** save, const void* bottom,
                                                  std::size_t size);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* saved, const void** bottom,
                                                   std::size_t* size);
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* token);
[[gnu::weak]] void __tsan_release(void* token);
}

namespace cuda_emulation {

void fiber_started();

namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10;  // AddressSanitizer's frames are large
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kStaggerBytes = 9 * 64;
constexpr std::size_t kMostStagger = 64 * kStaggerBytes;
constexpr unsigned kNotOrdered = 1;  // __tsan_switch_to_fiber_no_sync

Context* starting = nullptr;  // what a new fiber is
Context* left = nullptr;      // what was running before the last change

void start(std::byte* stack) {
  ucontext_t context;
  ::getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  ::makecontext(&context, fiber_started, 0);
  ::setcontext(&context);
}

/// Stacks that began at the same place of their pages would share the same lines of a cache.
std::byte* new_stack() {
  static std::size_t stacks = 0;
  void* const memory =
      ::mmap(nullptr, kPageBytes + kMostStagger + kStackBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fault("no memory for the stack of a CUDA thread");
  ::mprotect(memory, kPageBytes, PROT_NONE);
  const std::size_t shift = stacks++ * kStaggerBytes % kMostStagger;
  return static_cast<std::byte*>(memory) + kPageBytes + kMostStagger - shift;
}

}  // namespace

Context::Context()
    : tsan_(__tsan_get_current_fiber != nullptr ? __tsan_get_current_fiber() : nullptr) {}

void fiber_started() {
  Context& self = *starting;
  void (*const body)() = self.body_;
  self.body_ = nullptr;  // it goes on where it was left from here on
  self.arrived();
  body();
}

Context::Context(void (*body)())
    : stack_(new_stack()),
      bottom_(stack_),
      size_(kStackBytes),
      tsan_(__tsan_create_fiber != nullptr ? __tsan_create_fiber(0) : nullptr),
      body_(body) {}

void Context::change_to(Context& other) {
  left = this;
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(&fake_stack_, other.bottom_, other.size_);
  }
  if (sigsetjmp(jump_, 0) == 0) {
    if (__tsan_switch_to_fiber != nullptr) __tsan_switch_to_fiber(other.tsan_, kNotOrdered);
    if (other.body_ == nullptr) siglongjmp(other.jump_, 1);
    starting = &other;
    start(other.stack_);
  }
  arrived();
}

void Context::arrived() {
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(fake_stack_, &left->bottom_, &left->size_);
  }
}

bool fibers_are_watched() { return __tsan_create_fiber != nullptr; }

void release(void* token) {
  if (__tsan_release != nullptr) __tsan_release(token);
}

void acquire(void* token) {
  if (__tsan_acquire != nullptr) __tsan_acquire(token);
}

void forget_accesses(std::byte* first, std::size_t size) {
  if (!fibers_are_watched() || size == 0) return;
  const std::size_t before = reinterpret_cast<std::uintptr_t>(first) % kPageBytes;
  if (::mmap(first - before, size + before, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
    fault("no memory for shared memory");
  }
}

}  // namespace cuda_emulation
