// ThreadGroup: ranks that are threads of this process. The plain twin of the real backends: oracle,
// and the way to test many ranks on one machine. Owns what the ranks share; outlives the ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "comm/communicator.hpp"

namespace spillway::comm {

class ThreadGroup {
 public:
  explicit ThreadGroup(std::uint32_t ranks);
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  /// Runs `body` once per rank, each on a thread of its own, and returns when all are over. What a
  /// rank throws breaks the group: ranks that wait for it, or call later, throw
  /// `Error{device_error}` instead of waiting for ever. Rethrows what broke the group. A broken
  /// group stays broken.
  void run(const std::function<void(Communicator&)>& body);

 private:
  class Shared;
  class Member;
  std::unique_ptr<Shared> shared_;
};

}  // namespace spillway::comm
