// Ranks of the backend `tcp` that are threads of this process: each has its own communicator, and
// they meet on loopback, at a port that nobody else can have. A test may also be one end by hand.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/launch_environment.hpp"
#include "comm/tcp/socket.hpp"
#include "comm/tcp/wire.hpp"
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

inline constexpr CommunicatorOptions kPatient{.timeout_ms = 20'000};

[[nodiscard]] detail::Deadline in_seconds(int seconds);

/// Returns the message with which `call` fails; "" if it does not.
[[nodiscard]] std::string failure_of(const std::function<void()>& call);
/// Starts each process of a job, as `launches` say, and returns with what each of them fails.
[[nodiscard]] std::vector<std::string> failures_of(const std::vector<LaunchEnvironment>& launches,
                                                   const CommunicatorOptions& options = kPatient);

/// Returns what a rank of the job "test" says when it calls, connects to rank 0, and takes
/// connections in its place.
[[nodiscard]] detail::Hello hello_of(std::uint32_t rank, std::uint32_t ranks);
[[nodiscard]] FileDescriptor connect(const OwnPort& port);
[[nodiscard]] FileDescriptor listen(const OwnPort& port);
[[nodiscard]] FileDescriptor next_caller(const FileDescriptor& listener);

}  // namespace spillway::comm
