#include "comm/tcp/rendezvous.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "comm/tcp/reception.hpp"

namespace spillway::comm::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// So much later than rank 0 the others give up, so that they hear from it who is missing.
constexpr std::chrono::milliseconds kGrace{5000};

/// Returns the host at which ranks take connections: nobody else's if rank 0 is on loopback.
std::string own_host(const std::string& host) {
  const bool loopback = host == "localhost" || host == "::1" || host.starts_with("127.");
  return loopback ? host : "";
}

Hello hello_of(const LaunchEnvironment& launch, Purpose purpose) {
  Hello hello{.rank = launch.rank.value(), .ranks = launch.ranks, .purpose = purpose};
  hello.set_job(launch.job);
  return hello;
}

/// So long rank 0, if it cannot go on, tells ranks that are still to come.
constexpr std::chrono::seconds kRefusal{1};

class Rendezvous {
 public:
  Rendezvous(const LaunchEnvironment& launch, std::chrono::milliseconds limit)
      : launch_(launch),
        limit_(limit),
        end_(Clock::now() + limit +
             (is_first() ? std::chrono::milliseconds(0) : std::min(limit, kGrace))),
        reception_(hello_of(launch, Purpose::meeting), own_host(launch.host),
                   is_first() ? launch.port : std::uint16_t{0}),
        peers_(launch.ranks),
        places_(launch.ranks),
        left_(launch.ranks) {}

  std::vector<Peer> meet() {
    try {
      is_first() ? welcome_all() : introduce();
      while (missing(Purpose::data) || missing(Purpose::notices)) seat_next();
    } catch (const Error& error) {
      tell(error.code(), error.what());
      throw;
    }
    return std::move(peers_);
  }

 private:
  [[nodiscard]] bool is_first() const { return launch_.rank == Rank{0}; }

  /// Rank 0: waits for all, and tells each where the others are.
  void welcome_all() {
    while (missing(Purpose::notices)) seat_next();
    const Notice welcome{.kind = Notice::Kind::welcome};
    for (std::uint32_t rank = 1; rank < launch_.ranks; ++rank) {
      const FileDescriptor& socket = peers_[rank].notices;
      const bool told = send_all(socket, bytes_of(welcome), end_) &&
                        send_all(socket, std::as_bytes(std::span{places_}), end_);
      check(told, ErrorCode::device_error, died(rank));
    }
  }

  /// Another rank: tells rank 0 where it is, waits for the places of all and connects to those
  /// before it.
  void introduce() {
    call(0, Purpose::meeting);
    const FileDescriptor& first = peers_[0].notices;
    Notice notice;
    check(receive_all(first, writable_bytes_of(notice), end_), ErrorCode::device_error,
          fmt::format("rank 0, at {} port {}, has ended or has not answered: is another program "
                      "there?",
                      launch_.host, launch_.port));
    const std::optional<Notice> checked = check_notice(notice);
    check(checked.has_value(), ErrorCode::device_error,
          fmt::format("at {} port {} is a program other than rank 0 of this job; choose another "
                      "port by SPILLWAY_MASTER_PORT",
                      launch_.host, launch_.port));
    if (checked->kind != Notice::Kind::welcome) throw_notice(*checked);
    check(receive_all(first, std::as_writable_bytes(std::span{places_}), end_),
          ErrorCode::device_error, died(0));
    for (std::uint32_t rank = 0; rank < launch_.rank.value(); ++rank) {
      call(rank, Purpose::data);
      if (rank > 0) call(rank, Purpose::notices);
    }
  }

  /// Connects to `rank`, and says what for.
  void call(std::uint32_t rank, Purpose purpose) {
    const bool by_name = rank == 0 || places_[rank].host_name().empty();
    const std::string host(by_name ? launch_.host : places_[rank].host_name());
    const std::uint16_t port = rank == 0 ? launch_.port : places_[rank].port;
    FileDescriptor socket = [&] {
      try {
        return connect_to(host, port, end_, [this] { hear(); });
      } catch (const Error& error) {
        if (heard_.has_value()) throw;
        const bool late = Clock::now() >= end_;
        throw Error(error.code(),
                    fmt::format("rank {} has not reached rank {}{}: {}", launch_.rank.value(), rank,
                                late ? fmt::format(" within {} s", seconds()) : "", error.what()));
      }
    }();
    Hello hello = hello_of(launch_, purpose);
    if (purpose == Purpose::meeting) hello.port = reception_.port();
    check(send_all(socket, bytes_of(hello), end_), ErrorCode::device_error, died(rank));
    seat(rank, purpose) = std::move(socket);
  }

  [[nodiscard]] FileDescriptor& seat(std::uint32_t rank, Purpose purpose) {
    return purpose == Purpose::data ? peers_[rank].data : peers_[rank].notices;
  }

  [[nodiscard]] std::vector<std::uint32_t> absent(Purpose purpose) {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t rank = 0; rank < launch_.ranks; ++rank) {
      if (rank != launch_.rank.value() && !seat(rank, purpose).is_open()) ranks.push_back(rank);
    }
    return ranks;
  }
  [[nodiscard]] bool missing(Purpose purpose) { return !absent(purpose).empty(); }

  /// Waits for one rank to connect.
  void seat_next() {
    std::optional<Guest> guest = reception_.admit(watched(), end_);
    if (!guest.has_value()) {
      hear();
      if (Clock::now() < end_) return;
      const auto late = absent(missing(Purpose::notices) ? Purpose::notices : Purpose::data);
      throw Error(
          ErrorCode::device_error,
          fmt::format("of {} ranks, {} {} not come to {} port {} within {} s: start all of "
                      "them, with the same MASTER_ADDR and port, and see that no firewall "
                      "is between them",
                      launch_.ranks, fmt::join(late, ", "), late.size() == 1 ? "has" : "have",
                      launch_.host, launch_.port, seconds()));
    }
    const Hello& hello = guest->hello;
    FileDescriptor& place = seat(hello.rank, hello.purpose);
    if (place.is_open()) {
      const Notice notice = failure_notice(
          launch_.rank, ErrorCode::invalid_argument,
          fmt::format("the ranks cannot meet: two processes are rank {}", hello.rank));
      send_small(guest->socket, bytes_of(notice));
      throw Error(ErrorCode::invalid_argument, std::string(notice.text()));
    }
    if (hello.purpose == Purpose::meeting) {
      const std::string host = other_end(guest->socket);
      std::memcpy(places_[hello.rank].host, host.data(), host.size());
      places_[hello.rank].port = static_cast<std::uint16_t>(hello.port);
    }
    place = std::move(guest->socket);
  }

  /// Says whether this rank hears from that one that it cannot go on: rank 0 from all, and the
  /// others from rank 0.
  [[nodiscard]] bool is_watched(std::uint32_t rank) const {
    return (is_first() || rank == 0) && peers_[rank].notices.is_open() && !left_[rank];
  }
  [[nodiscard]] std::vector<int> watched() const {
    std::vector<int> sockets;
    for (std::uint32_t rank = 0; rank < launch_.ranks; ++rank) {
      if (is_watched(rank)) sockets.push_back(peers_[rank].notices.get());
    }
    return sockets;
  }

  /// Throws what a rank that cannot go on has said, or that it has died. One that has left has met
  /// all others; its notice stays where it is.
  void hear() {
    for (std::uint32_t rank = 0; rank < launch_.ranks; ++rank) {
      if (!is_watched(rank)) continue;
      Notice notice;
      const Moved moved = peek(peers_[rank].notices, writable_bytes_of(notice));
      check(moved.state != Transfer::closed, ErrorCode::device_error, died(rank));
      if (moved.bytes < sizeof notice) continue;
      const std::optional<Notice> checked = check_notice(notice);
      check(checked.has_value(), ErrorCode::device_error,
            fmt::format("rank {} has sent something else than a notice", rank));
      if (checked->kind == Notice::Kind::failed) throw_notice(*checked);
      left_[rank] = true;
    }
  }

  [[noreturn]] void throw_notice(const Notice& notice) {
    heard_ = notice;
    throw notice.error();
  }

  [[nodiscard]] double seconds() const { return static_cast<double>(limit_.count()) / 1e3; }

  static std::string died(std::uint32_t rank) {
    return fmt::format("rank {} has died before all ranks had met", rank);
  }

  void tell(ErrorCode code, std::string_view reason) noexcept {
    const Notice notice = heard_.value_or(failure_notice(launch_.rank, code, reason));
    for (std::uint32_t rank = 0; rank < launch_.ranks; ++rank) {
      if (is_watched(rank)) send_small(peers_[rank].notices, bytes_of(notice));
    }
    try {
      if (is_first() && missing(Purpose::notices)) {
        reception_.turn_away(notice, Clock::now() + kRefusal);
      }
    } catch (const Error&) {  // the first error is the one that counts
    }
  }

  const LaunchEnvironment& launch_;
  const std::chrono::milliseconds limit_;
  const Deadline end_;
  Reception reception_;
  std::vector<Peer> peers_;
  std::vector<Place> places_;
  std::vector<bool> left_;  // by rank: it has met all others, and gone
  std::optional<Notice> heard_;
};

}  // namespace

std::vector<Peer> meet(const LaunchEnvironment& launch, std::chrono::milliseconds limit) {
  check(launch.ranks <= kMostTcpRanks, ErrorCode::not_supported,
        fmt::format("{} ranks cannot meet by tcp, but {}; use mpi", launch.ranks, kMostTcpRanks));
  return Rendezvous(launch, limit).meet();
}

}  // namespace spillway::comm::detail
