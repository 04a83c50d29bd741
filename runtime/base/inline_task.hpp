// InlineTask: a callable stored in place, so that queues of tasks never allocate.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace spillway {

/// Any trivially copyable callable of at most `kCapacity` bytes: a lambda that captures pointers,
/// spans and numbers. What it points to must outlive the call.
class InlineTask {
 public:
  static constexpr std::size_t kCapacity = 240;

  InlineTask() = default;

  template <class Callable>
    requires(std::is_invocable_v<Callable&> && !std::is_same_v<Callable, InlineTask>)
  InlineTask(Callable callable)  // NOLINT(google-explicit-constructor): a task is its callable
      : call_([](std::byte* storage) { (*std::launder(reinterpret_cast<Callable*>(storage)))(); }) {
    static_assert(std::is_trivially_copyable_v<Callable>, "capture pointers and numbers only");
    static_assert(sizeof(Callable) <= kCapacity, "capture a pointer to a struct instead");
    static_assert(alignof(Callable) <= alignof(std::max_align_t));
    ::new (static_cast<void*>(storage_)) Callable(std::move(callable));
  }

  explicit operator bool() const { return call_ != nullptr; }
  void operator()() { call_(storage_); }

 private:
  void (*call_)(std::byte*) = nullptr;
  alignas(std::max_align_t) std::byte storage_[kCapacity];
};

}  // namespace spillway
