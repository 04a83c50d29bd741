// Reception: takes connections at a port, and finds out who of those that come is a rank of this
// job. Owns the port and the connections of those who have not said yet who they are; strangers and
// ranks of other jobs are sent away and disturb nobody.
//
// Threads: one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/tcp/socket.hpp"
#include "comm/tcp/wire.hpp"

namespace spillway::comm::detail {

/// Is a rank of this job that has connected.
struct Guest {
  Hello hello;
  FileDescriptor socket;
};

class Reception {
 public:
  /// `own` is what this rank would say. `host` and `port` are those of `listen_at`.
  Reception(const Hello& own, const std::string& host, std::uint16_t port);

  [[nodiscard]] std::uint16_t port() const { return port_of(listener_); }

  /// Returns the next rank; or nothing once `end` has passed, or one of `watched` has something to
  /// read. Throws what is wrong with a rank that cannot be one of this job, and tells it.
  [[nodiscard]] std::optional<Guest> admit(std::span<const int> watched, Deadline end);

  /// Answers every rank that comes until `end` with `notice`.
  void turn_away(const Notice& notice, Deadline end);

 private:
  struct Visit {
    FileDescriptor socket;
    Deadline end;  ///< by then it has said who it is
    Hello hello{};
    std::size_t received = 0;
  };

  void accept();
  /// Takes the socket from a visit that is over: that of a rank, which is in `admitted_` then, or
  /// that of a stranger.
  void listen_to(Visit& visit);
  void remove_silent();

  const Hello own_;
  std::optional<Notice> answer_;  // for whoever says hello from now on
  FileDescriptor listener_;
  std::vector<Visit> visits_;
  std::vector<Guest> admitted_;
};

}  // namespace spillway::comm::detail
