// Ranks of the backend `tcp` that are threads of this process: each has its own communicator, and
// they meet on loopback, at a port that nobody else can have.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "comm/communicator.hpp"
#include "comm/launch_environment.hpp"
#include "runtime/base/file.hpp"

namespace spillway::comm {

/// Owns a port as long as it lives: it is bound, and who sets SO_REUSEADDR may listen there.
class OwnPort {
 public:
  OwnPort();
  [[nodiscard]] std::uint16_t number() const { return number_; }

 private:
  FileDescriptor socket_;
  std::uint16_t number_ = 0;
};

[[nodiscard]] LaunchEnvironment tcp_launch(std::uint32_t rank, std::uint32_t ranks,
                                           const OwnPort& port, const std::string& job = "test");

/// Runs `body` once per rank, and rethrows the first error of the lowest rank that has one.
void run_tcp_ranks(std::uint32_t ranks, const CommunicatorOptions& options,
                   const std::function<void(Communicator&)>& body);

}  // namespace spillway::comm
