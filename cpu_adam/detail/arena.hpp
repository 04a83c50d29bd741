// Arena: the one home of oneTBB. Owns the workers' slots; threads come from oneTBB's own pool.
#pragma once

#include <cstddef>
#include <memory>

namespace spillway::cpu_adam::detail {

class Arena {
 public:
  /// `threads` counts the thread that enters. oneTBB's limit on threads of the process is raised
  /// for the life of the arena if it is lower.
  explicit Arena(std::size_t threads);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Runs function(context) on the calling thread, which is one of the arena's until it returns.
  void enter(void (*function)(void*), void* context);

  /// From inside `enter`: calls function(context, i) for i in [0, count), i preferring the same
  /// thread every time. Rethrows the first failure; indices not yet begun are then left out.
  static void for_each_index(std::size_t count, void (*function)(void*, std::size_t),
                             void* context);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace spillway::cpu_adam::detail
