// Fibers: stacks that one thread of the CPU changes between. Sanitizers are told of every change.
// What one fiber does before it leaves is not ordered before what another does, unless `release`
// and `acquire` say so: ThreadSanitizer sees the threads of a kernel as CUDA does.
#pragma once

#include <setjmp.h>

#include <cstddef>

namespace cuda_emulation {

/// A fiber, or the thread that runs them. Neither copied nor moved.
class Context {
 public:
  /// The calling thread.
  Context();
  /// A fiber that runs `body` when it is first changed to; `body` never returns.
  explicit Context(void (*body)());
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Leaves this, which is what runs, for `other`. Returns when something changes to this.
  [[gnu::noinline]] void change_to(Context& other);

 private:
  friend void fiber_started();
  void arrived();

  sigjmp_buf jump_;  ///< where it was left
  std::byte* stack_ = nullptr;
  const void* bottom_ = nullptr;  ///< of the stack, as AddressSanitizer wants it
  std::size_t size_ = 0;
  void* fake_stack_ = nullptr;  ///< AddressSanitizer's
  void* tsan_ = nullptr;        ///< ThreadSanitizer's
  void (*body_)() = nullptr;
};

/// Whether ThreadSanitizer sees the accesses of fibers.
[[nodiscard]] bool fibers_are_watched();
void release(void* token);
void acquire(void* token);
/// ThreadSanitizer takes the memory for another's from here on; what it holds is lost then.
void forget_accesses(std::byte* first, std::size_t size);

}  // namespace cuda_emulation
