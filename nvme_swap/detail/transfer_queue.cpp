#include "nvme_swap/detail/transfer_queue.hpp"

#include <algorithm>
#include <cerrno>

#include "runtime/base/error.hpp"

namespace spillway::nvme_swap::detail {
namespace {

std::uint32_t take_first(std::vector<std::uint32_t>& list) {
  const std::uint32_t first = list.front();
  list.erase(list.begin());
  return first;
}

/// A free list from which 0 comes first.
std::vector<std::uint32_t> descending(std::size_t count) {
  std::vector<std::uint32_t> list(count);
  for (std::size_t i = 0; i < count; ++i) list[i] = static_cast<std::uint32_t>(count - 1 - i);
  return list;
}

}  // namespace

TransferQueue::TransferQueue(IoEngine& engine, std::size_t depth, std::size_t piece_bytes,
                             std::size_t jobs)
    : engine_(engine),
      piece_bytes_(piece_bytes),
      jobs_(jobs),
      pieces_(depth),
      free_jobs_(descending(jobs)),
      free_pieces_(descending(depth)),
      results_(depth) {
  unissued_.reserve(jobs);
  over_.reserve(jobs);
  waiting_.reserve(depth);
  batch_.reserve(depth);
}

void TransferQueue::start(const Job& job) {
  SPILLWAY_ASSERT(!free_jobs_.empty());
  SPILLWAY_ASSERT(job.length > 0 || job.operation == IoOperation::flush);
  const std::uint32_t index = free_jobs_.back();
  free_jobs_.pop_back();
  jobs_[index] = JobState{.job = job};
  unissued_.push_back(index);
  ++active_jobs_;
}

void TransferQueue::pump() {
  const std::size_t count = in_engine_ == 0 ? 0 : engine_.poll(results_);
  in_engine_ -= count;
  for (std::size_t i = 0; i < count; ++i) take_result(results_[i]);
  cut_pieces();  // behind those that continue a transfer
  if (!waiting_.empty()) submit_waiting();
}

std::optional<JobOutcome> TransferQueue::take_outcome() {
  if (over_.empty()) return std::nullopt;
  const std::uint32_t index = take_first(over_);
  const JobState& state = jobs_[index];
  JobOutcome outcome{.owner = state.job.owner, .failure = state.failure};
  free_jobs_.push_back(index);
  --active_jobs_;
  return outcome;
}

void TransferQueue::wait() {
  SPILLWAY_ASSERT(in_engine_ > 0);
  engine_.wait();
}

void TransferQueue::take_result(const IoResult& result) {
  const auto index = static_cast<std::uint32_t>(result.tag);
  SPILLWAY_ASSERT(index < pieces_.size());
  Piece& piece = pieces_[index];
  IoRequest& request = piece.request;
  if (result.result >= 0) {
    const auto moved = static_cast<std::size_t>(result.result);
    if (moved > request.length) return fail(index, EPROTO);
    if (moved == request.length) return release_piece(index);
    // O_DIRECT moves whole pages: what a short transfer did to the last one is done again.
    const std::size_t progress = moved / kPageBytes * kPageBytes;
    request.offset += FileOffset{progress};
    request.data += progress;
    request.length -= progress;
    if (progress > 0) piece.stalls = 0;
  } else if (result.result != -EINTR && result.result != -EAGAIN) {
    return fail(index, static_cast<int>(-result.result));
  }
  if (++piece.stalls > kMaxStalls) {
    return fail(index, result.result < 0 ? static_cast<int>(-result.result) : 0);
  }
  waiting_.push_back(index);
}

void TransferQueue::cut_pieces() {
  while (!unissued_.empty() && !free_pieces_.empty()) {
    const std::uint32_t index = unissued_.front();
    JobState& state = jobs_[index];
    const Job& job = state.job;
    if (!state.failure) {
      const std::uint32_t piece = free_pieces_.back();
      free_pieces_.pop_back();
      const std::size_t length = std::min(piece_bytes_, job.length - state.issued);
      pieces_[piece] = {.request = {.operation = job.operation,
                                    .file = job.file,
                                    .offset = job.offset + FileOffset{state.issued},
                                    .data = job.data + state.issued,
                                    .length = length,
                                    .tag = piece},
                        .job = index};
      waiting_.push_back(piece);
      ++state.pieces;
      state.issued += length;
    }
    if (state.failure || state.issued == job.length) {
      take_first(unissued_);
      state.fully_issued = true;
      end_if_over(index);
    }
  }
}

void TransferQueue::submit_waiting() {
  batch_.clear();
  for (const std::uint32_t piece : waiting_) batch_.push_back(pieces_[piece].request);
  const std::size_t taken = engine_.submit(batch_);
  SPILLWAY_ASSERT(taken <= waiting_.size());
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(taken));
  in_engine_ += taken;
}

void TransferQueue::release_piece(std::uint32_t piece) {
  const std::uint32_t job = pieces_[piece].job;
  free_pieces_.push_back(piece);
  --jobs_[job].pieces;
  end_if_over(job);
}

void TransferQueue::fail(std::uint32_t piece, int error) {
  const IoRequest& request = pieces_[piece].request;
  JobState& state = jobs_[pieces_[piece].job];
  if (!state.failure) {
    state.failure = IoFailure{.operation = request.operation,
                              .error = error,
                              .file = request.file,
                              .offset = request.offset,
                              .length = request.length};
  }
  release_piece(piece);
}

void TransferQueue::end_if_over(std::uint32_t job) {
  const JobState& state = jobs_[job];
  if (state.fully_issued && state.pieces == 0) over_.push_back(job);
}

}  // namespace spillway::nvme_swap::detail
