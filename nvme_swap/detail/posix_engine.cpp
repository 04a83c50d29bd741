#include "nvme_swap/detail/posix_engine.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/base/mutex.hpp"
#include "runtime/base/thread.hpp"

namespace spillway::nvme_swap::detail {
namespace {

constexpr std::size_t kMaxThreads = 4;

/// A queue of fixed capacity.
template <class Value>
class Ring {
 public:
  explicit Ring(std::size_t capacity) : values_(capacity) {}
  [[nodiscard]] bool empty() const { return size_ == 0; }
  void push(const Value& value) {
    SPILLWAY_ASSERT(size_ < values_.size());
    values_[(first_ + size_) % values_.size()] = value;
    ++size_;
  }
  Value pop() {
    SPILLWAY_ASSERT(size_ > 0);
    const Value value = values_[first_];
    first_ = (first_ + 1) % values_.size();
    --size_;
    return value;
  }

 private:
  std::vector<Value> values_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

std::int64_t perform(const IoRequest& request) {
  const auto offset = static_cast<off_t>(request.offset.value());
  ssize_t result = 0;
  switch (request.operation) {
    case IoOperation::read:
      result = ::pread(request.file, request.data, request.length, offset);
      break;
    case IoOperation::write:
      result = ::pwrite(request.file, request.data, request.length, offset);
      break;
    case IoOperation::flush: result = ::fdatasync(request.file); break;
  }
  return result < 0 ? -std::int64_t{errno} : std::int64_t{result};
}

class PosixEngine final : public IoEngine {
 public:
  explicit PosixEngine(const EngineOptions& options)
      : files_(options.files.begin(), options.files.end()),
        depth_(options.queue_depth),
        wake_(options.wake),
        requests_(depth_),
        results_(depth_) {
    workers_.reserve(kMaxThreads);
    try {
      for (std::size_t i = 0; i < std::min(kMaxThreads, depth_); ++i) {
        workers_.push_back(start_thread("files", [this] { work(); }));
      }
    } catch (...) {
      stop();
      throw;
    }
  }

  PosixEngine(const PosixEngine&) = delete;
  PosixEngine& operator=(const PosixEngine&) = delete;
  ~PosixEngine() override { stop(); }

  [[nodiscard]] std::string_view name() const override { return "posix"; }

  [[nodiscard]] std::size_t submit(std::span<const IoRequest> requests) override {
    const std::size_t taken = std::min(requests.size(), depth_ - in_flight_);
    if (taken == 0) return 0;
    for (const IoRequest& request : requests.first(taken)) {
      check(std::find(files_.begin(), files_.end(), request.file) != files_.end(),
            ErrorCode::invalid_argument,
            "an I/O request names a file that the engine was not given");
    }
    {
      const Lock lock(mutex_);
      for (const IoRequest& request : requests.first(taken)) requests_.push(request);
    }
    in_flight_ += taken;
    if (taken == 1) {
      work_available_.notify_one();
    } else {
      work_available_.notify_all();
    }
    return taken;
  }

  [[nodiscard]] std::size_t poll(std::span<IoResult> results) override {
    if (in_flight_ == 0) return 0;
    std::size_t count = 0;
    const Lock lock(mutex_);
    while (count < results.size() && !results_.empty()) results[count++] = results_.pop();
    in_flight_ -= count;
    return count;
  }

  void wait() override {
    if (in_flight_ == 0) return;
    Lock lock(mutex_);
    while (results_.empty()) result_available_.wait(lock);
  }

 private:
  void work() {
    Lock lock(mutex_);
    for (;;) {
      while (!stopping_ && requests_.empty()) work_available_.wait(lock);
      if (requests_.empty()) return;
      const IoRequest request = requests_.pop();
      lock.unlock();
      const IoResult result{.tag = request.tag, .result = perform(request)};
      lock.lock();
      results_.push(result);
      result_available_.notify_one();
      if (wake_ != nullptr) wake_->notify();
    }
  }

  /// Workers finish the queued requests before they end.
  void stop() noexcept {
    {
      const Lock lock(mutex_);
      stopping_ = true;
    }
    work_available_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  const std::vector<int> files_;
  const std::size_t depth_;
  WakeSignal* const wake_;
  // Control thread.
  std::size_t in_flight_ = 0;
  std::vector<std::thread> workers_;

  Mutex mutex_;
  Condition work_available_;
  Condition result_available_;
  Ring<IoRequest> requests_ SPILLWAY_GUARDED_BY(mutex_);
  Ring<IoResult> results_ SPILLWAY_GUARDED_BY(mutex_);
  bool stopping_ SPILLWAY_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<IoEngine> make_posix_engine(const EngineOptions& options) {
  return std::make_unique<PosixEngine>(options);
}

}  // namespace spillway::nvme_swap::detail
