// Mutex, Lock and Condition: those of the standard library, with annotations by which clang checks
// (-Wthread-safety) that what a mutex guards is only used under it. Other compilers see none.
//
// Threads: any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define SPILLWAY_THREAD_ANNOTATION(annotation) __attribute__((annotation))
#else
#define SPILLWAY_THREAD_ANNOTATION(annotation)
#endif

// For types: a mutex, and what has one locked for as long as it lives.
#define SPILLWAY_CAPABILITY(name) SPILLWAY_THREAD_ANNOTATION(capability(name))
#define SPILLWAY_SCOPED_CAPABILITY SPILLWAY_THREAD_ANNOTATION(scoped_lockable)
// For variables: used under the mutex alone.
#define SPILLWAY_GUARDED_BY(mutex) SPILLWAY_THREAD_ANNOTATION(guarded_by(mutex))
// For functions: called under the mutex, or without it because they lock it themselves.
#define SPILLWAY_REQUIRES(mutex) SPILLWAY_THREAD_ANNOTATION(requires_capability(mutex))
#define SPILLWAY_EXCLUDES(mutex) SPILLWAY_THREAD_ANNOTATION(locks_excluded(mutex))
// For functions that lock the mutex, or unlock it; without an argument, that of their object.
#define SPILLWAY_ACQUIRE(...) SPILLWAY_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define SPILLWAY_RELEASE(...) SPILLWAY_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define SPILLWAY_TRY_ACQUIRE(...) SPILLWAY_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))

namespace spillway {

class SPILLWAY_CAPABILITY("mutex") Mutex {
 public:
  void lock() SPILLWAY_ACQUIRE() { mutex_.lock(); }
  void unlock() SPILLWAY_RELEASE() { mutex_.unlock(); }
  [[nodiscard]] bool try_lock() SPILLWAY_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class Lock;
  std::mutex mutex_;
};

/// Locks a mutex for as long as it lives, but for what lies between its `unlock` and its `lock`.
class SPILLWAY_SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Mutex& mutex) SPILLWAY_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~Lock() SPILLWAY_RELEASE() = default;
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void lock() SPILLWAY_ACQUIRE() { lock_.lock(); }
  void unlock() SPILLWAY_RELEASE() { lock_.unlock(); }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

/// `wait` unlocks while it waits, and may end without a notification. It takes no predicate,
/// because clang's analysis could not follow one: write `while (!over_) changed_.wait(lock);`.
class Condition {
 public:
  void wait(Lock& lock) { condition_.wait(lock.lock_); }
  /// Returns whether the time had come when the wait ended.
  bool wait_until(Lock& lock, std::chrono::steady_clock::time_point time) {
    return condition_.wait_until(lock.lock_, time) == std::cv_status::timeout;
  }
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace spillway
