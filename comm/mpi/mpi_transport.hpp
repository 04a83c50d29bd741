// MpiTransport: one rank's end of MPI_COMM_WORLD, by non-blocking sends and receives. Part of the
// plugin libspillway_mpi.so.
//
// Threads: all calls of MPI come from the thread that makes the transport.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "comm/detail/transport.hpp"

namespace spillway::comm::detail {

/// Initializes and finalizes MPI.
class MpiSession {
 public:
  MpiSession();
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  enum class End : std::uint8_t { with_the_others, at_once, after_another_rank };

  [[nodiscard]] MPI_Comm world() const { return world_; }
  /// Makes the end of this process the end of the job: what has failed cannot be finalized.
  void end_job(End end) { end_ = end; }

 private:
  bool ours_ = false;  // nobody else has initialized MPI
  End end_ = End::with_the_others;
  MPI_Comm world_ = MPI_COMM_NULL;
};

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(std::unique_ptr<MpiSession> session);
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  void send(Rank to, Source data) override;
  void receive(Rank from, Target data) override;
  [[nodiscard]] std::optional<Rank> wait(std::uint64_t count,
                                         std::chrono::milliseconds limit) override;
  [[nodiscard]] std::optional<Rank> wait_for_any(std::span<const Rank> from,
                                                 std::chrono::milliseconds limit) override;
  void tell_at_work() override;
  void abandon(ErrorCode code, std::string_view reason) noexcept override;

 private:
  enum class Way : std::uint8_t { in, out };
  struct Transfer {
    std::uint64_t number;
    Rank peer;
    Way way;
  };
  /// Message to every other rank from one that abandons the group, or that is at its own work.
  struct Notice {
    ErrorCode code = ErrorCode::device_error;
    bool at_work = false;
    char reason[507] = {};
  };

  void add(Rank peer, Way way, MPI_Request request);
  /// Forgets transfers that are over and returns whether there were any.
  bool collect();
  void await_notice();
  void check_notice();
  void tell_others(ErrorCode code, std::string_view reason);
  void cancel_unfinished();

  std::unique_ptr<MpiSession> session_;
  std::uint64_t started_ = 0;
  // Unfinished, in the order of their numbers; the two belong together.
  std::vector<Transfer> transfers_;
  std::vector<MPI_Request> requests_;
  std::vector<int> over_;  // scratch of `collect`
  Notice notice_;          // target of a receive that is always pending
  MPI_Request notice_request_ = MPI_REQUEST_NULL;
  bool noticed_ = false;
  const Notice at_work_{.at_work = true};
  std::vector<MPI_Request> telling_;  // by rank: the send of `at_work_`
};

}  // namespace spillway::comm::detail
