// oneTBB is not built for ThreadSanitizer, which would take the fields of a task that moves between
// threads for races. So this file is compiled without it, and WorkerPool, which is not, orders the
// threads by atomics of its own that the sanitizer understands.
#include "cpu_adam/detail/arena.hpp"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "runtime/base/log.hpp"

namespace spillway::cpu_adam::detail {
namespace {

using oneapi::tbb::global_control;
using oneapi::tbb::task_arena;

// oneTBB's default is the number of CPUs; the smallest live control decides once there is one.
std::size_t thread_limit(std::size_t threads) {
  return std::max(threads, global_control::active_value(global_control::max_allowed_parallelism));
}

std::size_t total_threads(const std::vector<WorkerNode>& nodes) {
  std::size_t total = 0;
  for (const WorkerNode& node : nodes) total += node.threads;
  return total;
}

/// Binds the calling thread, which works in an arena of `node`, to its place there, and puts its
/// own binding back. Not a task_scheduler_observer, which would bind a thread for as long as it
/// stays: oneTBB leaks its records of observers where workers are still about when the process
/// ends.
class Bound {
 public:
  explicit Bound(const WorkerNode& node) {
    if (node.places.empty()) return;
    const auto slot =
        static_cast<std::size_t>(oneapi::tbb::this_task_arena::current_thread_index());
    cpu_set_t place;
    CPU_ZERO(&place);
    for (const ProcessorIndex processor : node.places[slot % node.places.size()]) {
      CPU_SET(processor.value(), &place);
    }
    if (pthread_getaffinity_np(pthread_self(), sizeof before_, &before_) != 0) return;
    if (CPU_EQUAL(&before_, &place) != 0) return;
    bound_ = pthread_setaffinity_np(pthread_self(), sizeof place, &place) == 0;
    // A hint: where it is refused the results are the same and only slower.
    static std::atomic<bool> told = false;
    if (!bound_ && !told.exchange(true)) log_info("update threads cannot be bound to processors");
  }
  ~Bound() {
    if (bound_) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
  }
  Bound(const Bound&) = delete;
  Bound& operator=(const Bound&) = delete;

 private:
  cpu_set_t before_;
  bool bound_ = false;
};

/// The indices that one node runs.
struct Share {
  const WorkerNode* node;
  std::size_t first, last;
};

}  // namespace

class Arena::Implementation {
 public:
  explicit Implementation(std::vector<WorkerNode> nodes)
      : nodes_(std::move(nodes)),
        threads_(total_threads(nodes_)),
        limit_(global_control::max_allowed_parallelism, thread_limit(threads_)) {
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      // The entering thread works in the first arena; in the others all are oneTBB's.
      const unsigned reserved = n == 0 ? 1 : 0;
      arenas_.push_back(
          std::make_unique<task_arena>(static_cast<int>(nodes_[n].threads), reserved));
      // One that lacks memory where it is used first is waited for by whoever uses it next.
      arenas_.back()->initialize();
    }
  }

  [[nodiscard]] bool binds() const {
    return std::ranges::any_of(nodes_, [](const WorkerNode& node) { return !node.places.empty(); });
  }

  void enter(void (*function)(void*), void* context) {
    arenas_.front()->execute([function, context] { function(context); });
  }

  void for_each_index(std::size_t count, void (*function)(void*, std::size_t), void* context) {
    std::size_t before = nodes_.front().threads;
    const Share own{&nodes_.front(), 0, count * before / threads_};
    for (std::size_t n = 1; n < nodes_.size(); ++n) {
      const std::size_t after = before + nodes_[n].threads;
      const Share share{&nodes_[n], count * before / threads_, count * after / threads_};
      before = after;
      if (share.first == share.last) continue;
      enqueue(*arenas_[n], share, function, context);
    }
    run_guarded(own, function, context);
    while (const std::size_t left = pending_.load(std::memory_order_acquire)) pending_.wait(left);
    const std::exception_ptr failure = std::exchange(failure_, nullptr);
    failed_.store(false, std::memory_order_relaxed);
    if (failure != nullptr) std::rethrow_exception(failure);
  }

 private:
  /// Where oneTBB cannot take the share, that is its failure: others may run, and are waited for.
  void enqueue(task_arena& arena, Share share, void (*function)(void*, std::size_t),
               void* context) {
    pending_.fetch_add(1, std::memory_order_relaxed);
    try {
      arena.enqueue([this, share, function, context] {
        run_guarded(share, function, context);
        if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
      });
    } catch (...) {
      fail();
      pending_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  void run_guarded(Share share, void (*function)(void*, std::size_t), void* context) {
    try {
      oneapi::tbb::parallel_for(
          share.first, share.last,
          [node = share.node, function, context](std::size_t index) {
            const Bound bound(*node);
            function(context, index);
          },
          oneapi::tbb::static_partitioner{});
    } catch (...) {
      fail();
    }
  }

  /// Keeps the first failure, which is handled at the moment.
  void fail() {
    if (!failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::current_exception();
  }

  const std::vector<WorkerNode> nodes_;
  const std::size_t threads_;
  global_control limit_;
  std::vector<std::unique_ptr<task_arena>> arenas_;  // by node

  // Atomics, not a mutex: ThreadSanitizer would see the locks and not what orders them.
  std::atomic<std::size_t> pending_ = 0;  ///< shares of other nodes that still run
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;  ///< written by the first to set failed_, read when none is pending
};

Arena::Arena(std::vector<WorkerNode> nodes)
    : implementation_(std::make_unique<Implementation>(std::move(nodes))) {}
Arena::~Arena() = default;

bool Arena::binds() const { return implementation_->binds(); }

void Arena::enter(void (*function)(void*), void* context) {
  implementation_->enter(function, context);
}

void Arena::for_each_index(std::size_t count, void (*function)(void*, std::size_t), void* context) {
  implementation_->for_each_index(count, function, context);
}

}  // namespace spillway::cpu_adam::detail
