#include "nvme_swap/detail/uring_engine.hpp"

#include <fmt/format.h>
#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "nvme_swap/detail/closing_reason.hpp"
#include "nvme_swap/detail/polled_queues.hpp"
#include "nvme_swap/detail/uring_buffers.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::nvme_swap::detail {
namespace {

constexpr std::chrono::microseconds kPause{50};

[[noreturn]] void refuse(std::string_view what, int error_number) {
  throw Error(ErrorCode::not_supported,
              fmt::format("io_uring is not usable here: {}: {} (errno {}){}", what,
                          std::strerror(error_number), error_number, remedy_for(error_number)),
              error_number);
}

/// Without enough locked memory the ring works all the same, so that is a note and no error.
void register_buffers(io_uring& ring, std::span<const std::span<std::byte>> memory,
                      RegisteredBuffers& buffers) {
  std::vector<iovec> chunks = RegisteredBuffers::chunks_of(memory);
  if (chunks.empty()) return;
  const int registered =
      io_uring_register_buffers(&ring, chunks.data(), static_cast<unsigned>(chunks.size()));
  if (registered < 0) {
    log_info(
        "io_uring pins pages for every request, since it could not register buffers: {} "
        "(errno {}){}",
        std::strerror(-registered), -registered, remedy_for(-registered));
    return;
  }
  buffers.keep(std::move(chunks));
}

/// One ring and what is registered with it.
class UringQueue {
 public:
  UringQueue(unsigned depth, unsigned flags)
      : polled_by_kernel_((flags & IORING_SETUP_SQPOLL) != 0) {
    io_uring_params parameters{};
    parameters.flags = flags;
    parameters.sq_thread_idle = kSubmissionThreadIdleMilliseconds;
    const int made = io_uring_queue_init_params(depth, &ring_, &parameters);
    if (made < 0) refuse("io_uring_setup", -made);
  }
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;
  ~UringQueue() {
    // Drops the references to the files at once; left to the ring's own end, they (and a lock on
    // them) linger for some milliseconds.
    if (has_files_) io_uring_unregister_files(&ring_);
    io_uring_queue_exit(&ring_);
  }

  [[nodiscard]] io_uring& get() { return ring_; }

  /// An entry to fill, or none if the ring is full.
  [[nodiscard]] io_uring_sqe* prepare() {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    if (entry != nullptr) ++in_flight_;
    return entry;
  }

  void require_operations() {
    constexpr unsigned kOperations = 256;
    alignas(io_uring_probe)
        std::array<std::byte, sizeof(io_uring_probe) + kOperations * sizeof(io_uring_probe_op)>
            answer{};
    auto* const probe = reinterpret_cast<io_uring_probe*>(answer.data());
    const int asked = io_uring_register_probe(&ring_, probe, kOperations);
    if (asked < 0) refuse("the kernel does not report its operations", -asked);
    const bool complete = io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                          io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0 &&
                          io_uring_opcode_supported(probe, IORING_OP_READ_FIXED) != 0 &&
                          io_uring_opcode_supported(probe, IORING_OP_WRITE_FIXED) != 0 &&
                          io_uring_opcode_supported(probe, IORING_OP_FSYNC) != 0;
    if (!complete) refuse("the kernel lacks read, write or fsync", EOPNOTSUPP);
  }

  /// A filter may allow a ring to be made and forbid to enter it.
  void require_entry() {
    io_uring_prep_nop(prepare());
    while (!has_result()) {
      const int entered = io_uring_submit_and_wait(&ring_, 1);
      const bool passes = entered >= 0 || entered == -EINTR || entered == -EAGAIN;
      if (!passes) refuse("io_uring_enter", -entered);
    }
    IoResult result;
    static_cast<void>(collect({&result, 1}));
  }

  void register_with(std::span<const int> files, WakeSignal* wake) {
    if (!files.empty()) {
      const int registered =
          io_uring_register_files(&ring_, files.data(), static_cast<unsigned>(files.size()));
      if (registered < 0) refuse("registering the files", -registered);
      has_files_ = true;
    }
    if (wake != nullptr) {
      const int registered = io_uring_register_eventfd(&ring_, wake->descriptor());
      if (registered < 0) refuse("registering the wake signal", -registered);
    }
  }

  /// Gives prepared entries to the kernel. What it cannot take now (EAGAIN, EBUSY) stays in the
  /// ring and goes with the next call. Returns the errno of any other refusal, or 0.
  [[nodiscard]] int submit() {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int taken = io_uring_submit(&ring_);
      // The kernel's thread empties the ring at its own pace; it is awake now.
      if (polled_by_kernel_ && taken >= 0) return 0;
      if (taken > 0 || taken == -EINTR) continue;
      if (taken == 0 || taken == -EAGAIN || taken == -EBUSY) return 0;
      return -taken;
    }
    return 0;
  }

  [[nodiscard]] std::size_t collect(std::span<IoResult> results) {
    std::size_t count = 0;
    std::array<io_uring_cqe*, 64> entries{};
    while (count < results.size()) {
      const auto limit = std::min(entries.size(), results.size() - count);
      const unsigned got =
          io_uring_peek_batch_cqe(&ring_, entries.data(), static_cast<unsigned>(limit));
      if (got == 0) break;
      for (unsigned i = 0; i < got; ++i) {
        results[count++] = {.tag = entries[i]->user_data, .result = entries[i]->res};
      }
      io_uring_cq_advance(&ring_, got);
    }
    in_flight_ -= count;
    return count;
  }

  /// The kernel had no room for all entries at the last `submit`.
  [[nodiscard]] bool holds_back() const {
    return !polled_by_kernel_ && io_uring_sq_ready(&ring_) > 0;
  }
  [[nodiscard]] bool has_result() { return io_uring_cq_ready(&ring_) > 0; }

  /// Returns when there is a result, or sooner; the errno of a refusal, or 0.
  [[nodiscard]] int wait() {
    io_uring_cqe* entry = nullptr;
    const int got = io_uring_wait_cqe(&ring_, &entry);
    return got == 0 || got == -EINTR || got == -EAGAIN || got == -EBUSY ? 0 : -got;
  }

  /// Ends a ring that the kernel refuses to serve. Results of what the kernel has taken still
  /// arrive, in shared memory; what it has not taken fails with `error`.
  void abandon(int error, std::vector<IoResult>& results) {
    IoResult result;
    while (in_flight_ > io_uring_sq_ready(&ring_)) {
      if (collect({&result, 1}) == 1) {
        results.push_back(result);
      } else {
        std::this_thread::sleep_for(kPause);
      }
    }
    for (; in_flight_ > 0; --in_flight_) {
      const unsigned place = ring_.sq.sqe_tail - static_cast<unsigned>(in_flight_);
      const io_uring_sqe& entry = ring_.sq.sqes[place & *ring_.sq.kring_mask];
      results.push_back({.tag = entry.user_data, .result = -std::int64_t{error}});
    }
  }

 private:
  /// The kernel's submission thread sleeps after this long without work.
  static constexpr unsigned kSubmissionThreadIdleMilliseconds = 50;

  io_uring ring_{};
  const bool polled_by_kernel_;
  bool has_files_ = false;
  std::size_t in_flight_ = 0;  // prepared, and not collected yet
};

class UringEngine final : public IoEngine {
 public:
  explicit UringEngine(const EngineOptions& options)
      : files_(options.files.begin(), options.files.end()),
        depth_(options.queue_depth),
        wake_(options.wake) {
    ready_.reserve(depth_);
    open_rings(options);
    ring_->require_operations();
    ring_->require_entry();
    ring_->register_with(files_, options.wake);
    if (flush_ring_) flush_ring_->register_with(files_, options.wake);
    register_buffers(ring_->get(), options.buffers, buffers_);
    abilities_.registered_buffers = !buffers_.empty();
  }

  UringEngine(const UringEngine&) = delete;
  UringEngine& operator=(const UringEngine&) = delete;
  ~UringEngine() override { drain(); }

  [[nodiscard]] std::string_view name() const override { return "uring"; }
  [[nodiscard]] EngineAbilities abilities() const override { return abilities_; }

  [[nodiscard]] std::string_view failure() const override { return closed_.text(); }

  [[nodiscard]] std::size_t submit(std::span<const IoRequest> requests) override {
    std::size_t taken = 0;
    while (taken < requests.size() && in_flight_ < depth_) {
      const int index = index_of(requests[taken].file);
      io_uring_sqe* const entry = entry_for(requests[taken].operation);
      if (entry != nullptr) {
        fill(*entry, requests[taken], index);
      } else if (ring_) {
        break;
      } else {
        ready_.push_back({.tag = requests[taken].tag, .result = -std::int64_t{error_}});
        if (wake_ != nullptr) wake_->notify();
      }
      ++taken;
      ++in_flight_;
    }
    submit_prepared();
    return taken;
  }

  [[nodiscard]] std::size_t poll(std::span<IoResult> results) override {
    if (in_flight_ == 0) return 0;
    submit_prepared();
    std::size_t count = std::min(results.size(), ready_.size());
    std::copy_n(ready_.begin(), count, results.begin());
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count));
    if (ring_) count += ring_->collect(results.subspan(count));
    if (flush_ring_) count += flush_ring_->collect(results.subspan(count));
    in_flight_ -= count;
    return count;
  }

  void wait() override {
    if (in_flight_ == 0) return;
    while (ring_ && !ring_->has_result() && !(flush_ring_ && flush_ring_->has_result())) {
      submit_prepared();
      if (!ring_) return;
      if (flush_ring_ || ring_->holds_back()) {
        // No call waits for two rings, or for the kernel to have room.
        std::this_thread::sleep_for(kPause);
      } else if (const int error = ring_->wait(); error != 0) {
        give_up(error);
      }
    }
  }

 private:
  void open_rings(const EngineOptions& options) {
    const auto depth = static_cast<unsigned>(depth_);
    // The kernel's thread frees the entries of a batch when it has submitted all of it; until then
    // they count beside as many new ones, though their results may have been polled.
    const unsigned thread_depth = 2 * depth;
    if (options.uring.completion_polling) {
      const std::string obstacle = options.uring.submission_thread
                                       ? obstacle_to_polling(files_)
                                       : "it needs the submission thread";
      if (obstacle.empty()) {
        ring_.emplace(thread_depth, IORING_SETUP_SQPOLL | IORING_SETUP_IOPOLL);
        flush_ring_.emplace(depth, 0);  // a polled ring has no fsync
        abilities_ = {.submission_thread = true, .completion_polling = true};
        return;
      }
      log_info("io_uring does not poll for completions: {}", obstacle);
    }
    if (options.uring.submission_thread) {
      try {
        ring_.emplace(thread_depth, IORING_SETUP_SQPOLL);
        abilities_.submission_thread = true;
        return;
      } catch (const Error& error) {
        log_info("io_uring has no submission thread: {}", error.what());
      }
    }
    ring_.emplace(depth, 0);
  }

  /// An entry of the ring for `operation`; none if it is full or the engine has closed.
  [[nodiscard]] io_uring_sqe* entry_for(IoOperation operation) {
    std::optional<UringQueue>& ring =
        operation == IoOperation::flush && flush_ring_ ? flush_ring_ : ring_;
    if (!ring) return nullptr;
    io_uring_sqe* const entry = ring->prepare();
    if (entry != nullptr) return entry;
    submit_prepared();
    return ring ? ring->prepare() : nullptr;
  }

  [[nodiscard]] int index_of(int file) const {
    const auto found = std::find(files_.begin(), files_.end(), file);
    check(found != files_.end(), ErrorCode::invalid_argument,
          "an I/O request names a file that the engine was not given");
    return static_cast<int>(found - files_.begin());
  }

  void fill(io_uring_sqe& entry, const IoRequest& request, int file) const {
    const auto length = static_cast<unsigned>(std::min(request.length, kMaxTransfer));
    const std::uint64_t offset = request.offset.value();
    const std::optional<int> buffer = buffers_.find(request.data, length);
    if (request.operation == IoOperation::flush) {
      io_uring_prep_fsync(&entry, file, IORING_FSYNC_DATASYNC);
    } else if (request.operation == IoOperation::read) {
      if (buffer) {
        io_uring_prep_read_fixed(&entry, file, request.data, length, offset, *buffer);
      } else {
        io_uring_prep_read(&entry, file, request.data, length, offset);
      }
    } else if (buffer) {
      io_uring_prep_write_fixed(&entry, file, request.data, length, offset, *buffer);
    } else {
      io_uring_prep_write(&entry, file, request.data, length, offset);
    }
    io_uring_sqe_set_flags(&entry, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(&entry, request.tag);
  }

  void submit_prepared() {
    int error = ring_ ? ring_->submit() : 0;
    if (error == 0 && flush_ring_) error = flush_ring_->submit();
    if (error != 0) give_up(error);
  }

  void give_up(int error) {
    error_ = error;
    closed_.set("io_uring", "io_uring_enter", error);
    log_error("{}", closed_.text());
    for (std::optional<UringQueue>* ring : {&ring_, &flush_ring_}) {
      if (*ring) (*ring)->abandon(error, ready_);
      ring->reset();
    }
    if (wake_ != nullptr) wake_->notify();
  }

  void drain() {
    std::array<IoResult, 64> results;
    while (in_flight_ > 0) {
      wait();
      static_cast<void>(poll(results));
    }
  }

  const std::vector<int> files_;
  const std::size_t depth_;
  WakeSignal* const wake_;
  std::optional<UringQueue> ring_;        // until the engine closes
  std::optional<UringQueue> flush_ring_;  // beside a ring that polls
  std::vector<IoResult> ready_;           // known without a ring
  int error_ = 0;                         // with which the engine has closed
  ClosingReason closed_;
  RegisteredBuffers buffers_;
  EngineAbilities abilities_;
  std::size_t in_flight_ = 0;  // taken by submit, result not polled yet
};

}  // namespace

std::unique_ptr<IoEngine> make_uring_engine(const EngineOptions& options) {
  return std::make_unique<UringEngine>(options);
}

}  // namespace spillway::nvme_swap::detail
