// ForkGuard: tells the process that made an object with threads from one that was forked from it.
// Any thread.
#pragma once

#include <unistd.h>

namespace spillway::engine {

class ForkGuard {
 public:
  /// Whether this process was forked from the one that made the guard: it lacks its threads.
  [[nodiscard]] bool is_child() const { return getpid() != process_; }
  /// Throws `Error{not_supported}` in such a process.
  void check() const;

 private:
  const pid_t process_ = getpid();
};

}  // namespace spillway::engine
