// Seats: processors on which threads of a team run, each on one of its own. Any thread.
//
// The system wakes a thread where the one that wakes it runs. Threads that wait for each other in
// turn on one processor are no load that it would balance: such a step has taken four times as
// long.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace spillway::model::host {

class Seats {
 public:
  /// Moves the calling thread to a free processor that it may use, if one that called before sits
  /// on its own. It is not bound there. No effect if there is none, or if the system refuses.
  void take_one();

 private:
  /// Returns whether the processor was free.
  bool take(unsigned processor);

  std::array<std::atomic<std::uint64_t>, CPU_SETSIZE / 64> taken_{};
};

}  // namespace spillway::model::host
