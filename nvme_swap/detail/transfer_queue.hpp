// TransferQueue: jobs (one contiguous transfer, or a flush) cut into pieces for an IoEngine.
//
// Continues short transfers, retries EINTR and EAGAIN, checks every result. Sized at construction:
// nothing here allocates afterwards. Control thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nvme_swap/io_engine.hpp"
#include "runtime/base/units.hpp"

namespace spillway::nvme_swap::detail {

struct Job {
  IoOperation operation = IoOperation::read;
  int file = -1;
  FileOffset offset{};
  std::byte* data = nullptr;
  std::size_t length = 0;   ///< a multiple of kPageBytes; 0 for a flush
  std::uint32_t owner = 0;  ///< returned with the outcome
};

/// Failure of a piece of a job; `error` is 0 when transfers stopped making progress.
struct IoFailure {
  IoOperation operation = IoOperation::read;
  int error = 0;
  int file = -1;
  FileOffset offset{};
  std::size_t length = 0;
};

struct JobOutcome {
  std::uint32_t owner = 0;
  std::optional<IoFailure> failure{};
};

class TransferQueue {
 public:
  /// A result without progress (EINTR, EAGAIN, zero bytes) is retried this often in a row.
  static constexpr std::uint32_t kMaxStalls = 1000;

  TransferQueue(IoEngine& engine, std::size_t depth, std::size_t piece_bytes, std::size_t jobs);

  /// Takes a job. The caller keeps at most the number of jobs given at construction.
  void start(const Job& job);
  /// Collects results and submits what fits; does not block.
  void pump();
  /// Returns the next job that is over, if any.
  [[nodiscard]] std::optional<JobOutcome> take_outcome();
  /// Blocks until a request finishes. Something must be in flight.
  void wait();
  [[nodiscard]] bool idle() const { return active_jobs_ == 0; }

 private:
  struct JobState {
    Job job{};
    std::size_t issued = 0;
    std::uint32_t pieces = 0;  // out of the free list
    bool fully_issued = false;
    std::optional<IoFailure> failure{};
  };
  struct Piece {
    IoRequest request{};
    std::uint32_t job = 0;
    std::uint32_t stalls = 0;
  };

  void take_result(const IoResult& result);
  void cut_pieces();
  void submit_waiting();
  void release_piece(std::uint32_t piece);
  void fail(std::uint32_t piece, int error);
  void end_if_over(std::uint32_t job);

  IoEngine& engine_;
  const std::size_t piece_bytes_;
  std::vector<JobState> jobs_;
  std::vector<Piece> pieces_;
  std::vector<std::uint32_t> free_jobs_;
  std::vector<std::uint32_t> free_pieces_;
  std::vector<std::uint32_t> unissued_;  // jobs with pieces to cut, oldest first
  std::vector<std::uint32_t> waiting_;   // pieces that the engine has not taken, oldest first
  std::vector<std::uint32_t> over_;      // jobs whose outcome was not taken, oldest first
  std::vector<IoRequest> batch_;
  std::vector<IoResult> results_;
  std::size_t in_engine_ = 0;
  std::size_t active_jobs_ = 0;
};

}  // namespace spillway::nvme_swap::detail
