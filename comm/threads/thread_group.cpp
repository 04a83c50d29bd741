#include "comm/threads/thread_group.hpp"

#include <fmt/format.h>

#include <exception>
#include <thread>
#include <vector>

#include "comm/threads/detail/thread_transport.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/mutex.hpp"

namespace spillway::comm {

class ThreadGroup::Shared {
 public:
  Shared(std::uint32_t ranks, const ThreadGroupOptions& options)
      : options_(options.communicator), meeting_(ranks, options.link_gigabytes_per_second) {}

  [[nodiscard]] std::uint32_t ranks() const { return meeting_.ranks(); }

  void run_rank(Rank rank, const std::function<void(Communicator&)>& body) {
    try {
      Communicator communicator(
          [&] { return std::make_unique<detail::ThreadTransport>(meeting_, rank); }, options_);
      try {
        body(communicator);
      } catch (const std::exception& error) {
        keep_cause();  // before the other ranks hear of it and fail in their turn
        communicator.abandon(error.what());
      }
    } catch (const std::exception&) {
      miss_rank(rank);
    }
  }

  /// Informs the other ranks, in the handler of that error, that the system gives no more threads.
  void miss_rank(Rank rank) {
    keep_cause();
    detail::ThreadTransport(meeting_, rank)
        .abandon(ErrorCode::device_error, "this rank could not be started");
  }

  void rethrow_cause() {
    const Lock lock(mutex_);
    if (cause_ != nullptr) std::rethrow_exception(cause_);
  }

 private:
  void keep_cause() {
    const Lock lock(mutex_);
    if (cause_ == nullptr) cause_ = std::current_exception();
  }

  const CommunicatorOptions options_;
  detail::Meeting meeting_;
  Mutex mutex_;
  std::exception_ptr cause_ SPILLWAY_GUARDED_BY(mutex_);
};

ThreadGroup::ThreadGroup(std::uint32_t ranks, const ThreadGroupOptions& options) {
  check(ranks > 0, ErrorCode::invalid_argument, "a group has at least one rank");
  const double rate = options.link_gigabytes_per_second.value_or(1);
  // Below 1 kB/s a page takes seconds and the clock's arithmetic could overflow.
  check(rate >= 1e-6 && rate <= 1e6, ErrorCode::invalid_argument,
        fmt::format("a link of {} GB/s is not possible; use 0.000001 to 1000000", rate));
  shared_ = std::make_unique<Shared>(ranks, options);
}

ThreadGroup::~ThreadGroup() = default;

void ThreadGroup::run(const std::function<void(Communicator&)>& body) {
  shared_->rethrow_cause();
  std::vector<std::jthread> threads(shared_->ranks());
  for (std::uint32_t rank = 0; rank < shared_->ranks(); ++rank) {
    try {
      threads[rank] = std::jthread([this, rank, &body] { shared_->run_rank(Rank{rank}, body); });
    } catch (const std::exception&) {
      shared_->miss_rank(Rank{rank});
    }
  }
  threads.clear();
  shared_->rethrow_cause();
}

}  // namespace spillway::comm
