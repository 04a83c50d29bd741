#include "comm/tcp/socket.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/base/error.hpp"

namespace spillway::comm::detail {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Nobody may have begun to listen yet.
constexpr std::chrono::milliseconds kPause{20};
/// A small message is tried so often while the system has no buffer for it.
constexpr int kMostRepeats = 100;
constexpr std::chrono::milliseconds kRepeat{1};
/// So long one wait lasts before it is seen whether all is in vain.
constexpr std::chrono::milliseconds kGlance{100};
/// An address that does not answer must not take all the time of those that would.
constexpr std::chrono::seconds kAttempt{10};
/// A machine that has lost its power says nothing; it is asked after 10 s, then every 5 s.
constexpr int kAliveIdleSeconds = 10;
constexpr int kAliveIntervalSeconds = 5;
constexpr int kAliveQuestions = 3;

void set(const FileDescriptor& socket, int level, int option, int value) {
  if (::setsockopt(socket.get(), level, option, &value, sizeof value) != 0) {
    throw_errno(errno, "setsockopt of a connection between ranks");
  }
}

void set_up(const FileDescriptor& socket) {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kAliveIdleSeconds);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kAliveIntervalSeconds);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, kAliveQuestions);
}

FileDescriptor open_stream(int family) {
  return FileDescriptor(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
}

/// Returns getaddrinfo's status.
int resolve(const char* host, std::uint16_t port, Addresses& addresses) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  addresses.reset(found);
  return status;
}

/// Waits for `events` and returns false if there are none until `end`.
bool wait_for(
    const FileDescriptor& socket, short events, Deadline end,
    const std::function<void()>& meanwhile = [] {}) {
  while (true) {
    pollfd one{.fd = socket.get(), .events = events, .revents = 0};
    const int ready = ::poll(&one, 1, poll_time(std::min(end, Clock::now() + kGlance)));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= end) return false;
    if (ready < 0 && errno != EINTR) throw_errno(errno, "poll of a connection between ranks");
    meanwhile();
  }
}

/// Returns a listener or leaves the reason in errno.
FileDescriptor try_listen(const addrinfo& address) {
  FileDescriptor listener = open_stream(address.ai_family);
  if (!listener.is_open()) return listener;
  // Connections of an earlier job that are still closing do not keep the port.
  set(listener, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ai_family == AF_INET6) set(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(listener.get(), address.ai_addr, address.ai_addrlen) == 0 &&
      ::listen(listener.get(), SOMAXCONN) == 0) {
    return listener;
  }
  const int reason = errno;
  listener.close();
  errno = reason;
  return listener;
}

/// Returns a connection or leaves the reason in `reason`.
FileDescriptor try_connect(const addrinfo& address, Deadline end, int& reason,
                           const std::function<void()>& between) {
  FileDescriptor socket = open_stream(address.ai_family);
  reason = errno;
  if (!socket.is_open()) return socket;
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return socket;
  reason = errno;
  if (reason == EINPROGRESS) {
    socklen_t size = sizeof reason;
    const bool answered =
        wait_for(socket, POLLOUT, std::min(end, Clock::now() + kAttempt), between);
    if (!answered) {
      reason = ETIMEDOUT;
    } else if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &reason, &size) != 0) {
      reason = errno;
    } else if (reason == 0) {
      return socket;
    }
  }
  return FileDescriptor();
}

/// Returns a numeric address, or nothing where there is none.
std::string text_of(const sockaddr& address, socklen_t size) {
  char text[NI_MAXHOST] = {};
  if (::getnameinfo(&address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  constexpr std::string_view kMapped = "::ffff:";
  std::string_view found = text;
  if (found.starts_with(kMapped)) found.remove_prefix(kMapped.size());
  return std::string(found);
}

/// Returns that of one end of a connection, or nothing if it has gone, which that will say.
std::string address_of(const FileDescriptor& socket, int (*of_end)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto& generic = reinterpret_cast<sockaddr&>(address);
  return of_end(socket.get(), &generic, &size) == 0 ? text_of(generic, size) : "";
}

bool is_of_loopback(std::string_view address) {
  return address == "::1" || address.starts_with("127.");
}

Moved receive(const FileDescriptor& socket, std::span<std::byte> target, int flags) {
  return moved(::recv(socket.get(), target.data(), target.size(), flags));
}

}  // namespace

Moved moved(ssize_t bytes) {
  if (bytes > 0) return {.state = Transfer::some, .bytes = static_cast<std::size_t>(bytes)};
  if (bytes == 0) return {.state = Transfer::closed};
  const bool passes = errno == EAGAIN || errno == EINTR || errno == ENOBUFS;
  if (passes) return {.state = Transfer::none_now};
  return {.state = Transfer::closed, .error = errno};
}

std::optional<FileDescriptor> listen_at(const std::string& host, std::uint16_t port) {
  Addresses addresses(nullptr, &::freeaddrinfo);
  if (resolve(host.c_str(), port, addresses) != 0) return std::nullopt;
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    FileDescriptor listener = try_listen(*one);
    if (listener.is_open()) return listener;
    check(errno != EADDRINUSE || port == 0, ErrorCode::busy,
          fmt::format("rank 0 cannot take connections at port {}: another program has it, or "
                      "another job; choose another port by SPILLWAY_MASTER_PORT",
                      port));
    if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) {
      throw_errno(errno, port == 0 ? std::string("listen at a port that is free")
                                   : fmt::format("listen at port {}", port));
    }
  }
  return std::nullopt;
}

FileDescriptor listen_everywhere(std::uint16_t port) {
  // "::" takes connections of IPv4 too; "0.0.0.0" is for machines without IPv6.
  for (const char* const all : {"::", "0.0.0.0"}) {
    if (std::optional<FileDescriptor> listener = listen_at(all, port)) return std::move(*listener);
  }
  throw Error(ErrorCode::not_supported, "this machine has no address at which ranks could meet");
}

std::uint16_t port_of(const FileDescriptor& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw_errno(errno, "getsockname");
  }
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::optional<FileDescriptor> accept_at(const FileDescriptor& listener) {
  FileDescriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.is_open()) {
    set_up(socket);
    return socket;
  }
  // Who has connected may have gone again, which is one of many errors and none of this rank's.
  check(errno != EMFILE && errno != ENFILE, ErrorCode::io_error,
        "this process has too many open files for its ranks; raise ulimit -n");
  return std::nullopt;
}

FileDescriptor connect_to(const std::string& host, std::uint16_t port, Deadline end,
                          const std::function<void()>& between) {
  Addresses addresses(nullptr, &::freeaddrinfo);
  std::string reason;
  do {
    const int status = resolve(host.c_str(), port, addresses);
    reason = status == 0 ? "" : ::gai_strerror(status);
    const bool may_change = status == 0 || status == EAI_AGAIN;
    check(may_change, ErrorCode::invalid_argument,
          fmt::format("the host {} has no address: {}", host, reason));
    for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
      int error = 0;
      FileDescriptor socket = try_connect(*one, end, error, between);
      if (socket.is_open()) {
        set_up(socket);
        return socket;
      }
      reason = std::strerror(error);
    }
    between();
    std::this_thread::sleep_for(kPause);
  } while (Clock::now() < end);
  throw Error(ErrorCode::device_error,
              fmt::format("nobody takes connections at {} port {}: {}", host, port, reason));
}

std::string other_end(const FileDescriptor& socket) {
  const std::string there = address_of(socket, &::getpeername);
  // A machine reaches itself over loopback, or by the same address at both ends.
  const bool here = is_of_loopback(there) || there == address_of(socket, &::getsockname);
  return here ? "" : there;
}

std::string this_end(const FileDescriptor& socket) {
  const std::string here = address_of(socket, &::getsockname);
  return is_of_loopback(here) ? "" : here;
}

bool is_loopback(const std::string& host) {
  Addresses addresses(nullptr, &::freeaddrinfo);
  if (resolve(host.c_str(), 0, addresses) != 0) return false;
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    if (!is_of_loopback(text_of(*one->ai_addr, one->ai_addrlen))) return false;
  }
  return true;
}

Moved receive_some(const FileDescriptor& socket, std::span<std::byte> target) {
  return receive(socket, target, 0);
}

Moved peek(const FileDescriptor& socket, std::span<std::byte> target) {
  return receive(socket, target, MSG_PEEK);
}

bool send_small(const FileDescriptor& socket, std::span<const std::byte> source) noexcept {
  ssize_t sent = 0;
  for (int i = 0; i < kMostRepeats; ++i) {
    sent = ::send(socket.get(), source.data(), source.size(), MSG_NOSIGNAL);
    if (sent >= 0 || (errno != EINTR && errno != ENOBUFS)) break;
    std::this_thread::sleep_for(kRepeat);
  }
  return sent == static_cast<ssize_t>(source.size());
}

std::size_t unsent(const FileDescriptor& socket) {
  int bytes = 0;
  if (::ioctl(socket.get(), SIOCOUTQ, &bytes) != 0) throw_errno(errno, "ioctl SIOCOUTQ");
  return static_cast<std::size_t>(bytes);
}

Ending send_all(const FileDescriptor& socket, std::span<const std::byte> source, Deadline end,
                const std::function<void()>& meanwhile) {
  while (!source.empty()) {
    const Moved more = moved(::send(socket.get(), source.data(), source.size(), MSG_NOSIGNAL));
    if (more.state == Transfer::closed) return {.kind = Ending::Kind::closed, .error = more.error};
    source = source.subspan(more.bytes);
    if (more.state == Transfer::none_now && !wait_for(socket, POLLOUT, end, meanwhile)) {
      return {.kind = Ending::Kind::late};
    }
  }
  return {};
}

Ending receive_all(const FileDescriptor& socket, std::span<std::byte> target, Deadline end,
                   const std::function<void()>& meanwhile) {
  while (!target.empty()) {
    const Moved more = receive_some(socket, target);
    if (more.state == Transfer::closed) return {.kind = Ending::Kind::closed, .error = more.error};
    target = target.subspan(more.bytes);
    if (more.state == Transfer::none_now && !wait_for(socket, POLLIN, end, meanwhile)) {
      return {.kind = Ending::Kind::late};
    }
  }
  return {};
}

int poll_time(Deadline end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

}  // namespace spillway::comm::detail
