#include "cpu_adam/worker_pool.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "cpu_adam/detail/arena.hpp"
#include "cpu_adam/detail/worker_nodes.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/mutex.hpp"
#include "runtime/base/simd/flush_denormals.hpp"
#include "runtime/base/thread.hpp"
#include "runtime/base/topology.hpp"

namespace spillway::cpu_adam {
namespace {

constexpr std::size_t kMaxThreads = 4096;

std::size_t resolve_threads(std::size_t requested) {
  if (requested > kMaxThreads) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} update threads were asked for; {} is the most, 0 takes one a core",
                            requested, kMaxThreads));
  }
  return requested == 0 ? read_topology().cores.size() : requested;
}

}  // namespace

// Tasks are numbered from 0 in submission order, wrapping at 2^32; the number is the ticket's slot
// and its remainder by the ring's size, a power of two, is its entry. As tasks run in order,
// "number n is over" is "at least n + 1 tasks are over", and only an error needs an entry for
// longer than its run.
class WorkerPool::Implementation {
 public:
  explicit Implementation(const WorkerPoolOptions& options)
      : threads_(resolve_threads(options.threads)),
        wake_(options.wake),
        ring_(std::bit_ceil(std::max<std::size_t>(options.queue_depth, 1))),
        arena_(detail::spread_over_nodes(read_topology(), threads_, options.binding)),
        dispatcher_(start_thread("updates", [this] { dispatch(); })) {
    Lock lock(mutex_);
    while (!entered_ && failure_ == nullptr) finished_changed_.wait(lock);
    if (entered_) return;
    const std::exception_ptr failure = failure_;
    lock.unlock();
    dispatcher_.join();
    std::rethrow_exception(failure);
  }

  ~Implementation() {
    {
      const Lock lock(mutex_);
      stopping_ = true;
    }
    submitted_changed_.notify_one();
    dispatcher_.join();
  }

  std::uint32_t submit(InlineTask task) {
    Lock lock(mutex_);
    while (submitted_ - finished_ >= ring_.size()) finished_changed_.wait(lock);
    Entry& entry = entry_of(submitted_);
    if (entry.error != nullptr) std::rethrow_exception(entry.error);
    entry.task = task;
    const std::uint32_t number = submitted_++;
    lock.unlock();
    submitted_changed_.notify_one();
    return number;
  }

  bool ready(std::uint32_t number) {
    const Lock lock(mutex_);
    return is_finished(number);
  }

  void finish(std::uint32_t number) {
    Lock lock(mutex_);
    while (!is_finished(number)) finished_changed_.wait(lock);
    Entry& entry = entry_of(number);
    // The entry may belong to a later task by now, but then this one did not fail.
    if (entry.error == nullptr || entry.failed != number) return;
    const std::exception_ptr error = std::exchange(entry.error, nullptr);
    lock.unlock();
    std::rethrow_exception(error);
  }

  void run_partitioned(std::size_t count, std::size_t grain, RangeFunction function,
                       const void* context) {
    SPILLWAY_ASSERT(std::this_thread::get_id() == dispatcher_id_.load(std::memory_order_relaxed));
    SPILLWAY_ASSERT(grain > 0);
    const std::size_t units = count / grain + (count % grain != 0 ? 1 : 0);
    Partition partition{.function = function,
                        .context = context,
                        .count = count,
                        .grain = grain,
                        .units = units,
                        .parts = std::min(units, threads_)};
    if (partition.parts == 0) return;
    if (partition.parts == 1 && !arena_.binds()) return partition.run(0);
    partition.begun.store(true, std::memory_order_release);
    std::exception_ptr failure;
    try {
      arena_.for_each_index(
          partition.parts,
          [](void* self, std::size_t part) { static_cast<Partition*>(self)->run_ordered(part); },
          &partition);
    } catch (...) {
      failure = std::current_exception();
    }
    static_cast<void>(partition.ended.load(std::memory_order_acquire));
    if (failure != nullptr) std::rethrow_exception(failure);
  }

  [[nodiscard]] std::size_t threads() const { return threads_; }

 private:
  struct Entry {
    InlineTask task;
    std::exception_ptr error;  ///< of task number `failed`, until its ticket is waited for
    std::uint32_t failed = 0;
  };

  struct Partition {
    RangeFunction function;
    const void* context;
    std::size_t count, grain, units, parts;
    // oneTBB orders the threads by itself; these say so where ThreadSanitizer can see it.
    std::atomic<bool> begun = false;
    std::atomic<std::size_t> ended = 0;

    void run(std::size_t part) const {
      const std::size_t first = units * part / parts * grain;
      const std::size_t last = std::min(units * (part + 1) / parts * grain, count);
      const simd::FlushDenormals guard;
      function(context, first, last);
    }

    void run_ordered(std::size_t part) {
      static_cast<void>(begun.load(std::memory_order_acquire));
      try {
        run(part);
      } catch (...) {
        ended.fetch_add(1, std::memory_order_acq_rel);
        throw;
      }
      ended.fetch_add(1, std::memory_order_acq_rel);
    }
  };

  /// The dispatcher runs an entry's task without the lock: nobody else uses the entry meanwhile.
  Entry& entry_of(std::uint32_t number) SPILLWAY_REQUIRES(mutex_) {
    return ring_[number % ring_.size()];
  }
  [[nodiscard]] bool is_finished(std::uint32_t number) const SPILLWAY_REQUIRES(mutex_) {
    return static_cast<std::int32_t>(finished_ - number) > 0;
  }

  /// The body of the dispatcher. oneTBB may lack memory to let it in: the constructor throws that.
  void dispatch() {
    try {
      arena_.enter([](void* self) { static_cast<Implementation*>(self)->run_tasks(); }, this);
    } catch (...) {
      const Lock lock(mutex_);
      failure_ = std::current_exception();
    }
    finished_changed_.notify_all();
  }

  void run_tasks() noexcept {
    dispatcher_id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    Lock lock(mutex_);
    entered_ = true;
    finished_changed_.notify_all();
    while (true) {
      while (!stopping_ && submitted_ == finished_) submitted_changed_.wait(lock);
      if (submitted_ == finished_) return;
      Entry& entry = entry_of(finished_);
      lock.unlock();
      std::exception_ptr error;
      try {
        const simd::FlushDenormals guard;
        entry.task();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      entry.error = std::move(error);
      entry.failed = finished_;
      ++finished_;
      lock.unlock();
      finished_changed_.notify_all();
      if (wake_ != nullptr) wake_->notify();
      lock.lock();
    }
  }

  const std::size_t threads_;
  WakeSignal* const wake_;

  Mutex mutex_;
  Condition submitted_changed_;
  Condition finished_changed_;
  std::vector<Entry> ring_ SPILLWAY_GUARDED_BY(mutex_);
  std::uint32_t submitted_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  std::uint32_t finished_ SPILLWAY_GUARDED_BY(mutex_) = 0;
  bool stopping_ SPILLWAY_GUARDED_BY(mutex_) = false;
  bool entered_ SPILLWAY_GUARDED_BY(mutex_) = false;        ///< the arena, by the dispatcher
  std::exception_ptr failure_ SPILLWAY_GUARDED_BY(mutex_);  ///< of entering it

  std::atomic<std::thread::id> dispatcher_id_;
  detail::Arena arena_;
  std::thread dispatcher_;  // last: it uses all of the above
};

WorkerPool::WorkerPool(const WorkerPoolOptions& options)
    : implementation_(std::make_unique<Implementation>(options)) {}

WorkerPool::~WorkerPool() = default;

Ticket WorkerPool::submit(InlineTask task) { return {*this, implementation_->submit(task)}; }

std::size_t WorkerPool::threads() const { return implementation_->threads(); }

bool WorkerPool::ready(std::uint32_t slot) { return implementation_->ready(slot); }

void WorkerPool::finish(std::uint32_t slot) { implementation_->finish(slot); }

void WorkerPool::run_partitioned(std::size_t count, std::size_t grain, RangeFunction function,
                                 const void* context) {
  implementation_->run_partitioned(count, grain, function, context);
}

}  // namespace spillway::cpu_adam
