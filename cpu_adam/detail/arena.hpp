// Arena: the one home of oneTBB. Owns the workers' slots, one oneTBB arena a memory node; threads
// come from oneTBB's own pool and are bound while they run an index here.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cpu_adam/detail/worker_nodes.hpp"

namespace spillway::cpu_adam::detail {

class Arena {
 public:
  /// Treats the thread that enters as one of the first node's. Raises oneTBB's limit on threads of
  /// the process, if that is lower, for the life of the arena.
  explicit Arena(std::vector<WorkerNode> nodes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Whether threads are kept to places.
  [[nodiscard]] bool binds() const;

  /// Runs function(context) on the calling thread, which is one of the arena's until it returns.
  void enter(void (*function)(void*), void* context);

  /// Calls, from inside `enter`, function(context, i) for i in [0, count). Which node runs i
  /// depends on count alone; within the node i prefers the same thread every time. Rethrows the
  /// first failure; indices not yet begun may then be left out.
  void for_each_index(std::size_t count, void (*function)(void*, std::size_t), void* context);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace spillway::cpu_adam::detail
