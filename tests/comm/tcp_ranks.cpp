#include "tests/comm/tcp_ranks.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::comm {

OwnPort::OwnPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(socket_.get(), generic, size) != 0 ||
      ::getsockname(socket_.get(), generic, &size) != 0) {
    throw_errno(errno, "a port on loopback");
  }
  number_ = ntohs(address.sin_port);
}

LaunchEnvironment tcp_launch(std::uint32_t rank, std::uint32_t ranks, const OwnPort& port,
                             const std::string& job) {
  return {.launcher = "test",
          .rank = Rank{rank},
          .ranks = ranks,
          .backend = "tcp",
          .host = "127.0.0.1",
          .port = port.number(),
          .job = job};
}

void run_tcp_ranks(std::uint32_t ranks, const CommunicatorOptions& options,
                   const std::function<void(Communicator&)>& body) {
  const OwnPort port;
  std::vector<std::exception_ptr> errors(ranks);
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          const auto self = make_tcp_communicator(tcp_launch(rank, ranks, port), options);
          try {
            body(*self);
          } catch (const std::exception& error) {
            self->abandon(error.what());
            throw;
          }
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

detail::Deadline in_seconds(int seconds) {
  return std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
}

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::vector<std::string> failures_of(const std::vector<LaunchEnvironment>& launches,
                                     const CommunicatorOptions& options) {
  std::vector<std::future<std::string>> ranks;
  for (const LaunchEnvironment& launch : launches) {
    ranks.push_back(std::async(std::launch::async, [&] {
      return failure_of([&] { make_tcp_communicator(launch, options)->barrier().wait(); });
    }));
  }
  std::vector<std::string> messages;
  for (auto& rank : ranks) messages.push_back(rank.get());
  return messages;
}

detail::Hello hello_of(std::uint32_t rank, std::uint32_t ranks) {
  detail::Hello hello{.rank = rank, .ranks = ranks};
  hello.set_job("test");
  return hello;
}

FileDescriptor connect(const OwnPort& port) {
  return detail::connect_to("127.0.0.1", port.number(), in_seconds(20));
}

FileDescriptor listen(const OwnPort& port) {
  return std::move(*detail::listen_at("127.0.0.1", port.number()));
}

FileDescriptor next_caller(const FileDescriptor& listener) {
  std::optional<FileDescriptor> socket;
  while (!socket.has_value()) socket = detail::accept_at(listener);
  return std::move(*socket);
}

}  // namespace spillway::comm
