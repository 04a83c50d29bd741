// ThreadGroup: ranks that are threads of this process. The plain twin of the real backends: oracle,
// and the way to test many ranks on one machine. Owns what the ranks share; outlives the ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "comm/communicator.hpp"

namespace spillway::comm {

struct ThreadGroupOptions {
  CommunicatorOptions communicator{};
  /// Limits what each rank sends, and what it receives; absent: as fast as memcpy.
  std::optional<double> link_gigabytes_per_second = std::nullopt;
};

class ThreadGroup {
 public:
  explicit ThreadGroup(std::uint32_t ranks, const ThreadGroupOptions& options = {});
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  /// Runs `body` once per rank, each on a thread of its own, and returns when all are over. A rank
  /// that throws abandons the group (`Communicator::abandon`). Rethrows what broke the group, which
  /// stays broken.
  void run(const std::function<void(Communicator&)>& body);

 private:
  class Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace spillway::comm
