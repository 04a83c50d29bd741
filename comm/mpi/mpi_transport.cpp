#include "comm/mpi/mpi_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <thread>

#include "comm/mpi/plugin.hpp"

namespace spillway::comm::detail {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDataTag = 1;
constexpr int kNoticeTag = 2;
/// So often a wait asks again at once, and then at this interval: ranks may share cores.
constexpr int kEagerLooks = 100;
constexpr std::chrono::microseconds kInterval{50};
/// Bounds how long a rank that has failed tries to tell the others.
constexpr std::chrono::milliseconds kFarewell{500};
/// Time for a launcher to pass on the last output of a process.
constexpr std::chrono::milliseconds kLastWords{200};

void check_mpi(int status, std::string_view what) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  throw Error(ErrorCode::device_error, fmt::format("{} failed: {}", what, text.data()), status);
}

Rank rank_of(MPI_Comm world) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(world, &rank), "MPI_Comm_rank");
  return Rank{static_cast<std::uint32_t>(rank)};
}

std::uint32_t size_of(MPI_Comm world) {
  int size = 0;
  check_mpi(MPI_Comm_size(world, &size), "MPI_Comm_size");
  return static_cast<std::uint32_t>(size);
}

/// Ends the job when this process ends, whatever the launcher makes of an exit without finalizing.
/// By then the program has said what is wrong, which mpiexec of MPICH loses if the job ends before
/// it has read that.
void abort_at_exit() {
  std::this_thread::sleep_for(kLastWords);
  MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
}

/// Lets the rank that has failed first say so.
void wait_at_exit() { std::this_thread::sleep_for(std::chrono::seconds(1)); }

}  // namespace

MpiSession::MpiSession() {
  int finalized = 0;
  check_mpi(MPI_Finalized(&finalized), "MPI_Finalized");
  check(finalized == 0, ErrorCode::not_supported,
        "MPI has been finalized in this process; a process has one group of backend mpi");
  int initialized = 0;
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  ours_ = initialized == 0;
  if (ours_) {
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread");
  } else {
    check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  }
  check(level >= (ours_ ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE), ErrorCode::not_supported,
        "this process has initialized MPI without MPI_THREAD_MULTIPLE; ask for it, or leave "
        "MPI to Spillway");
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiSession::~MpiSession() {
  if (end_ != End::with_the_others) {
    std::atexit(abort_at_exit);
    if (end_ == End::after_another_rank) std::atexit(wait_at_exit);  // which runs first
    return;
  }
  MPI_Comm_free(&world_);
  if (ours_) MPI_Finalize();
}

MpiTransport::MpiTransport(std::unique_ptr<MpiSession> session)
    : Transport(rank_of(session->world()), size_of(session->world())),
      session_(std::move(session)) {
  const std::size_t most = 2 * kMaxUnfinished * ranks();
  transfers_.reserve(most);
  requests_.reserve(most);
  over_.reserve(most);
  telling_.resize(ranks(), MPI_REQUEST_NULL);
  await_notice();
}

MpiTransport::~MpiTransport() {
  for (MPI_Request& request : telling_) {
    if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
  }
  if (notice_request_ == MPI_REQUEST_NULL) return;
  MPI_Cancel(&notice_request_);
  MPI_Wait(&notice_request_, MPI_STATUS_IGNORE);
}

void MpiTransport::send(Rank to, Source data) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE,
                      static_cast<int>(to.value()), kDataTag, session_->world(), &request),
            "MPI_Isend");
  add(to, Way::out, request);
}

void MpiTransport::receive(Rank from, Target data) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Irecv(data.data(), static_cast<int>(data.size()), MPI_BYTE,
                      static_cast<int>(from.value()), kDataTag, session_->world(), &request),
            "MPI_Irecv");
  add(from, Way::in, request);
}

void MpiTransport::add(Rank peer, Way way, MPI_Request request) {
  transfers_.push_back({.number = started_++, .peer = peer, .way = way});
  requests_.push_back(request);
}

std::optional<Rank> MpiTransport::wait(std::uint64_t count, std::chrono::milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  for (int looks = 0;; ++looks) {
    if (collect()) looks = 0;
    if (transfers_.empty() || transfers_.front().number >= count) return std::nullopt;
    check_notice();
    if (Clock::now() >= end) return transfers_.front().peer;
    if (looks < kEagerLooks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kInterval);
    }
  }
}

std::optional<Rank> MpiTransport::wait_for_any(std::span<const Rank> from,
                                               std::chrono::milliseconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  while (true) {
    for (const Rank other : from) {
      int arrived = 0;
      check_mpi(MPI_Iprobe(static_cast<int>(other.value()), kDataTag, session_->world(), &arrived,
                           MPI_STATUS_IGNORE),
                "MPI_Iprobe");
      if (arrived != 0) return other;
    }
    check_notice();
    if (Clock::now() >= end) return std::nullopt;
    std::this_thread::sleep_for(kInterval);
  }
}

bool MpiTransport::collect() {
  int count = 0;
  over_.resize(requests_.size());
  check_mpi(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, over_.data(),
                         MPI_STATUSES_IGNORE),
            "a transfer");
  if (count == MPI_UNDEFINED || count == 0) return false;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;  // MPI has freed it
    requests_[kept] = requests_[i];
    transfers_[kept++] = transfers_[i];
  }
  requests_.resize(kept);
  transfers_.resize(kept);
  return true;
}

void MpiTransport::await_notice() {
  check_mpi(MPI_Irecv(&notice_, sizeof notice_, MPI_BYTE, MPI_ANY_SOURCE, kNoticeTag,
                      session_->world(), &notice_request_),
            "MPI_Irecv");
}

void MpiTransport::check_notice() {
  int arrived = 0;
  MPI_Status status;
  check_mpi(MPI_Test(&notice_request_, &arrived, &status), "MPI_Test");
  if (arrived == 0) return;
  if (notice_.at_work) {
    hear_at_work(Clock::now());
    return await_notice();
  }
  noticed_ = true;
  throw Error(notice_.code, fmt::format("rank {} has abandoned the group: {}", status.MPI_SOURCE,
                                        std::string_view(notice_.reason)));
}

void MpiTransport::tell_at_work() {
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    if (Rank{rank} == this->rank()) continue;
    int told = 0;
    check_mpi(MPI_Test(&telling_[rank], &told, MPI_STATUS_IGNORE), "MPI_Test");
    if (told == 0) continue;
    check_mpi(MPI_Isend(&at_work_, sizeof at_work_, MPI_BYTE, static_cast<int>(rank), kNoticeTag,
                        session_->world(), &telling_[rank]),
              "MPI_Isend");
  }
}

void MpiTransport::abandon(ErrorCode code, std::string_view reason) noexcept {
  session_->end_job(noticed_ ? MpiSession::End::after_another_rank : MpiSession::End::at_once);
  try {
    if (!noticed_) tell_others(code, reason);  // else who has failed first has told them
    cancel_unfinished();
  } catch (const std::exception&) {  // the connections are gone, and so is the launcher's patience
  }
}

void MpiTransport::tell_others(ErrorCode code, std::string_view reason) {
  auto notice = std::make_unique<Notice>(Notice{.code = code});
  std::ranges::copy(reason.substr(0, sizeof notice->reason - 1), notice->reason);
  std::vector<MPI_Request> requests;
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    if (Rank{rank} == this->rank()) continue;
    check_mpi(MPI_Isend(notice.get(), sizeof *notice, MPI_BYTE, static_cast<int>(rank), kNoticeTag,
                        session_->world(), &requests.emplace_back()),
              "MPI_Isend");
  }
  int over = 0;
  const Clock::time_point end = Clock::now() + kFarewell;
  while (over == 0 && Clock::now() < end) {
    check_mpi(
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &over, MPI_STATUSES_IGNORE),
        "MPI_Testall");
    std::this_thread::sleep_for(kInterval);
  }
  if (over == 0) static_cast<void>(notice.release());  // MPI may read it until the process ends
}

// A send cannot be taken back; it only reads, and the process is about to end.
void MpiTransport::cancel_unfinished() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (transfers_[i].way == Way::in) MPI_Cancel(&requests_[i]);
  }
  const Clock::time_point end = Clock::now() + kFarewell;
  while (!requests_.empty() && Clock::now() < end) {
    if (!collect()) std::this_thread::sleep_for(kInterval);
  }
}

}  // namespace spillway::comm::detail

extern "C" {

const char* spillway_mpi_version() { return SPILLWAY_VERSION; }

spillway::comm::detail::Transport* spillway_mpi_make_transport() {
  using spillway::comm::detail::MpiSession;
  return new spillway::comm::detail::MpiTransport(std::make_unique<MpiSession>());
}

}  // extern "C"
