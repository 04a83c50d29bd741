// Reception: takes connections at a port, and finds out who of those that come is a rank of this
// job. Owns the port and the connections of those who have not proved yet who they are; strangers,
// ranks of other jobs and ranks that cannot be one of this are sent away and disturb nobody.
//
// Threads: one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/tcp/job_key.hpp"
#include "comm/tcp/socket.hpp"
#include "comm/tcp/wire.hpp"

namespace spillway::comm::detail {

/// A rank of this job that has connected.
struct Guest {
  Hello hello;
  FileDescriptor socket;
};

class Reception {
 public:
  /// Keeps a reference to `key`. `own`: what this rank would say.
  Reception(const Hello& own, FileDescriptor listener, JobKey& key);

  [[nodiscard]] std::uint16_t port() const { return port_of(listener_); }

  /// Returns the next rank; or nothing once `end` has passed, or one of `watched` has something to
  /// read.
  [[nodiscard]] std::optional<Guest> admit(std::span<const int> watched, Deadline end);

  /// Sends a rank away that was admitted, with the reason.
  void refuse(const FileDescriptor& socket, const std::string& reason);
  /// Reason why the last caller that claimed to be a rank was sent away; empty: none was.
  [[nodiscard]] const std::string& last_refusal() const { return last_refusal_; }

  /// Answers every rank that comes until `end` with `notice`.
  void turn_away(const Notice& notice, Deadline end);
  /// Number of callers that were answered so.
  [[nodiscard]] std::uint32_t turned_away() const { return turned_away_; }

 private:
  struct Visit {
    FileDescriptor socket;
    Deadline end;  ///< by then it has said and proved who it is
    Hello hello{};
    Challenge challenge{};
    Proof proof{};
    std::size_t received = 0;  ///< bytes of the hello, then of the proof
  };

  void accept();
  /// Reads what the visit has sent. Takes the socket from one that is over; that of a rank goes to
  /// `admitted_`.
  void listen_to(Visit& visit);
  void hear_hello(Visit& visit);
  void hear_proof(Visit& visit);
  /// Sends the visit away with the answer, if there is one.
  [[nodiscard]] bool answers(Visit& visit);
  /// Acts on the verdict, and returns whether the visit goes on.
  [[nodiscard]] bool goes_on(Visit& visit, const Verdict& verdict);
  void remove_late();

  const Hello own_;
  JobKey& key_;
  std::optional<Notice> answer_;  // for whoever says hello from now on
  FileDescriptor listener_;
  std::vector<Visit> visits_;
  std::vector<Guest> admitted_;
  std::string last_refusal_;
  std::uint32_t refusals_ = 0;
  std::uint32_t turned_away_ = 0;
};

}  // namespace spillway::comm::detail
