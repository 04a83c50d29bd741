#include "nvme_swap/detail/aio_engine.hpp"

#include <fmt/format.h>
#include <libaio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>
#include <utility>
#include <vector>

#include "nvme_swap/detail/closing_reason.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::nvme_swap::detail {
namespace {

/// How long to leave a kernel alone that is out of resources.
constexpr std::chrono::milliseconds kRetry{1};

class AioEngine final : public IoEngine {
 public:
  explicit AioEngine(const EngineOptions& options)
      : files_(options.files.begin(), options.files.end()),
        depth_(options.queue_depth),
        wake_(options.wake),
        blocks_(depth_),
        events_(depth_) {
    free_.reserve(depth_);
    for (std::size_t i = depth_; i > 0; --i) free_.push_back(&blocks_[i - 1]);
    queued_.reserve(depth_);
    ready_.reserve(depth_);
    const int made = io_setup(static_cast<int>(depth_), &context_);
    if (made < 0) {
      throw Error(
          ErrorCode::not_supported,
          fmt::format("Linux AIO is not usable here: io_setup for {} requests: {} (errno {}){}",
                      depth_, std::strerror(-made), -made,
                      made == -EAGAIN ? "; raise /proc/sys/fs/aio-max-nr" : ""),
          -made);
    }
  }

  AioEngine(const AioEngine&) = delete;
  AioEngine& operator=(const AioEngine&) = delete;

  ~AioEngine() override {
    // What was taken is done, as with every engine.
    while (!queued_.empty()) {
      ready_.clear();
      wait();
    }
    end();
  }

  [[nodiscard]] std::string_view name() const override { return "aio"; }

  [[nodiscard]] std::string_view failure() const override { return closed_.text(); }

  [[nodiscard]] std::size_t submit(std::span<const IoRequest> requests) override {
    const std::size_t taken = std::min(requests.size(), depth_ - in_flight_);
    for (const IoRequest& request : requests.first(taken)) {
      check(std::find(files_.begin(), files_.end(), request.file) != files_.end(),
            ErrorCode::invalid_argument,
            "an I/O request names a file that the engine was not given");
    }
    for (const IoRequest& request : requests.first(taken)) {
      fill(*free_.back(), request);
      queued_.push_back(free_.back());
      free_.pop_back();
    }
    in_flight_ += taken;
    give_to_kernel();
    return taken;
  }

  [[nodiscard]] std::size_t poll(std::span<IoResult> results) override {
    give_to_kernel();
    if (ready_.size() < results.size()) collect(0);
    const std::size_t count = std::min(results.size(), ready_.size());
    std::copy_n(ready_.begin(), count, results.begin());
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count));
    in_flight_ -= count;
    return count;
  }

  void wait() override {
    while (ready_.empty() && in_flight_ > 0) {
      give_to_kernel();
      if (!ready_.empty()) return;
      if (in_kernel_ > 0) {
        collect(1);
      } else {
        std::this_thread::sleep_for(kRetry);
      }
    }
  }

 private:
  void fill(iocb& block, const IoRequest& request) const {
    const auto offset = static_cast<long long>(request.offset.value());
    switch (request.operation) {
      case IoOperation::read:
        io_prep_pread(&block, request.file, request.data, request.length, offset);
        break;
      case IoOperation::write:
        io_prep_pwrite(&block, request.file, request.data, request.length, offset);
        break;
      case IoOperation::flush: io_prep_fdsync(&block, request.file); break;
    }
    if (wake_ != nullptr) io_set_eventfd(&block, wake_->descriptor());
    std::memcpy(&block.data, &request.tag, sizeof request.tag);
  }

  void finish(iocb* block, std::int64_t result) {
    IoResult entry{.result = result};
    std::memcpy(&entry.tag, &block->data, sizeof entry.tag);
    ready_.push_back(entry);
    free_.push_back(block);
  }

  /// Waits for what is under way.
  void end() {
    if (context_ == nullptr) return;
    const int failed = io_destroy(std::exchange(context_, nullptr));
    if (failed < 0) log_error("io_destroy failed: {}", std::strerror(-failed));
  }

  /// The kernel no longer says what has finished: that of nothing in flight is known.
  void give_up(int error) {
    error_ = error;
    closed_.set("Linux AIO", "io_getevents", error);
    log_error("{}", closed_.text());
    end();
    queued_.clear();
    in_kernel_ = 0;
    for (iocb& block : blocks_) {
      if (std::find(free_.begin(), free_.end(), &block) == free_.end()) finish(&block, -error);
    }
    if (wake_ != nullptr) wake_->notify();
  }

  /// What the kernel cannot take now (EAGAIN) stays queued; what it refuses is a result.
  void give_to_kernel() {
    if (error_ != 0) {
      if (queued_.empty()) return;
      for (iocb* block : queued_) finish(block, -error_);
      queued_.clear();
      if (wake_ != nullptr) wake_->notify();
      return;
    }
    std::size_t done = 0;
    while (done < queued_.size()) {
      const int taken =
          io_submit(context_, static_cast<long>(queued_.size() - done), queued_.data() + done);
      if (taken == -EINTR) continue;
      if (taken == -EAGAIN || taken == 0) break;
      if (taken > 0) {
        done += static_cast<std::size_t>(taken);
        in_kernel_ += static_cast<std::size_t>(taken);
        continue;
      }
      finish(queued_[done++], taken);
      if (wake_ != nullptr) wake_->notify();
    }
    queued_.erase(queued_.begin(), queued_.begin() + static_cast<std::ptrdiff_t>(done));
  }

  /// Takes what has finished, and waits until at least `least` have.
  void collect(long least) {
    if (error_ != 0) return;
    timespec at_once{};
    int got = 0;
    do {
      got = io_getevents(context_, least, static_cast<long>(in_kernel_), events_.data(),
                         least == 0 ? &at_once : nullptr);
    } while (got == -EINTR);
    if (got < 0) return give_up(-got);
    for (int i = 0; i < got; ++i) {
      const io_event& event = events_[static_cast<std::size_t>(i)];
      finish(event.obj, static_cast<std::int64_t>(event.res));
    }
    in_kernel_ -= static_cast<std::size_t>(got);
  }

  const std::vector<int> files_;
  const std::size_t depth_;
  WakeSignal* const wake_;
  io_context_t context_ = nullptr;
  std::vector<iocb> blocks_;
  std::vector<io_event> events_;
  std::vector<iocb*> free_;
  std::vector<iocb*> queued_;    // taken, not yet given to the kernel
  std::vector<IoResult> ready_;  // finished, not yet polled
  int error_ = 0;                // with which the engine has closed
  ClosingReason closed_;
  std::size_t in_kernel_ = 0;
  std::size_t in_flight_ = 0;  // taken by submit, result not polled yet
};

}  // namespace

std::unique_ptr<IoEngine> make_aio_engine(const EngineOptions& options) {
  return std::make_unique<AioEngine>(options);
}

}  // namespace spillway::nvme_swap::detail
