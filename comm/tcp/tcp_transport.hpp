// TcpTransport: one rank's end of a group of processes that are connected by TCP, each with each.
// Owns the connections.
//
// Threads: the one that makes it.
#pragma once

#include <poll.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/detail/transport.hpp"
#include "comm/launch_environment.hpp"
#include "comm/tcp/connection.hpp"
#include "comm/tcp/inbox.hpp"
#include "comm/tcp/rendezvous.hpp"
#include "comm/tcp/wire.hpp"

namespace spillway::comm::detail {

class TcpTransport final : public Transport {
 public:
  /// Takes what `meet` has returned.
  TcpTransport(Rank rank, std::vector<Peer> peers);
  /// Informs the other ranks that this one is done, unless it has abandoned them.
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  void send(Rank to, Source data) override;
  void receive(Rank from, Target data) override;
  [[nodiscard]] std::optional<Rank> wait(std::uint64_t count,
                                         std::chrono::milliseconds limit) override;
  [[nodiscard]] std::optional<Rank> wait_for_any(std::span<const Rank> from,
                                                 std::chrono::milliseconds limit) override;
  void tell_at_work() override;
  void abandon(ErrorCode code, std::string_view reason) noexcept override;

 private:
  struct Link {
    Connection data;
    Inbox notices;
    /// Until then the other end may say why its connection of data is closed.
    std::optional<std::chrono::steady_clock::time_point> last_word{};
  };

  struct Unfinished {
    std::uint64_t number;
    Rank peer;
  };
  /// Returns the first transfer that is unfinished.
  [[nodiscard]] std::optional<Unfinished> oldest() const;
  /// Moves what can be moved once something can, or until `end`, or until bytes come from one of
  /// `awaited`.
  void advance(std::chrono::steady_clock::time_point end, std::span<const Rank> awaited = {});
  /// Throws if `link` to that rank will bring nothing more: it has left, or its connection of data
  /// is gone and it does not say why.
  void check_present(Link& link, Rank other) const;
  /// Throws if that rank has failed or died.
  void hear(Link& link);
  void tell(const Notice& notice) noexcept;

  std::vector<Link> links_;    // by rank
  std::vector<pollfd> polls_;  // of link i: 2 i for data, 2 i + 1 for notices
  std::uint64_t started_ = 0;
  std::optional<Notice> heard_;  // of the rank that has failed first
  bool abandoned_ = false;
};

/// Makes a transport among the processes that `launch` names. They have `limit` to come.
[[nodiscard]] std::unique_ptr<Transport> make_tcp_transport(const LaunchEnvironment& launch,
                                                            std::chrono::milliseconds limit);

}  // namespace spillway::comm::detail
