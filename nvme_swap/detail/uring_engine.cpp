#include "nvme_swap/detail/uring_engine.hpp"

#include <fmt/format.h>
#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::nvme_swap::detail {
namespace {

/// A submission entry holds 32 bits of length; what is longer comes back short and is continued.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;

[[noreturn]] void refuse(std::string_view what, int error_number) {
  std::string_view remedy;
  if (error_number == EPERM || error_number == EACCES) {
    remedy = " (kernel.io_uring_disabled or a seccomp filter forbids it)";
  } else if (error_number == ENOMEM) {
    remedy = " (raise the locked-memory limit, ulimit -l)";
  }
  throw Error(ErrorCode::not_supported,
              fmt::format("io_uring is not usable here: {}: {} (errno {}){}", what,
                          std::strerror(error_number), error_number, remedy),
              error_number);
}

class UringEngine final : public IoEngine {
 public:
  explicit UringEngine(const EngineOptions& options)
      : files_(options.files.begin(), options.files.end()), depth_(options.queue_depth) {
    const int made = io_uring_queue_init(static_cast<unsigned>(depth_), &ring_, 0);
    if (made < 0) refuse("io_uring_setup", -made);
    try {
      prepare(options.wake);
    } catch (...) {
      io_uring_queue_exit(&ring_);
      throw;
    }
  }

  UringEngine(const UringEngine&) = delete;
  UringEngine& operator=(const UringEngine&) = delete;

  ~UringEngine() override {
    drain();
    // Drops the references to the files at once; left to the ring's own end, they (and a lock on
    // them) linger for some milliseconds.
    if (!files_.empty()) io_uring_unregister_files(&ring_);
    io_uring_queue_exit(&ring_);
  }

  [[nodiscard]] std::string_view name() const override { return "uring"; }

  [[nodiscard]] std::size_t submit(std::span<const IoRequest> requests) override {
    std::size_t taken = 0;
    while (taken < requests.size() && in_flight_ < depth_) {
      const int index = index_of(requests[taken].file);
      io_uring_sqe* entry = io_uring_get_sqe(&ring_);
      if (entry == nullptr) {
        flush_submissions();
        entry = io_uring_get_sqe(&ring_);
        if (entry == nullptr) break;
      }
      fill(*entry, requests[taken], index);
      ++taken;
      ++in_flight_;
    }
    flush_submissions();
    return taken;
  }

  [[nodiscard]] std::size_t poll(std::span<IoResult> results) override {
    flush_submissions();
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
      in_flight_ -= got;
    }
    return count;
  }

  void wait() override {
    while (in_flight_ > 0) {
      flush_submissions();
      io_uring_cqe* entry = nullptr;
      const int got = io_uring_wait_cqe(&ring_, &entry);
      if (got == 0) return;
      if (got != -EINTR && got != -EAGAIN && got != -EBUSY) {
        throw_errno(-got, "wait for an io_uring completion");
      }
    }
  }

 private:
  void prepare(WakeSignal* wake) {
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    if (probe == nullptr) refuse("the kernel does not report its operations", ENOSYS);
    const bool complete = io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                          io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0 &&
                          io_uring_opcode_supported(probe, IORING_OP_FSYNC) != 0;
    io_uring_free_probe(probe);
    if (!complete) refuse("the kernel lacks read, write or fsync", EOPNOTSUPP);
    if (!files_.empty()) {
      const int registered =
          io_uring_register_files(&ring_, files_.data(), static_cast<unsigned>(files_.size()));
      if (registered < 0) refuse("registering the files", -registered);
    }
    if (wake != nullptr) {
      const int registered = io_uring_register_eventfd(&ring_, wake->descriptor());
      if (registered < 0) refuse("registering the wake signal", -registered);
    }
  }

  [[nodiscard]] int index_of(int file) const {
    const auto found = std::find(files_.begin(), files_.end(), file);
    check(found != files_.end(), ErrorCode::invalid_argument,
          "an I/O request names a file that the engine was not given");
    return static_cast<int>(found - files_.begin());
  }

  static void fill(io_uring_sqe& entry, const IoRequest& request, int index) {
    const auto length = static_cast<unsigned>(std::min(request.length, kMaxTransfer));
    switch (request.operation) {
      case IoOperation::read:
        io_uring_prep_read(&entry, index, request.data, length, request.offset.value());
        break;
      case IoOperation::write:
        io_uring_prep_write(&entry, index, request.data, length, request.offset.value());
        break;
      case IoOperation::flush: io_uring_prep_fsync(&entry, index, IORING_FSYNC_DATASYNC); break;
    }
    io_uring_sqe_set_flags(&entry, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(&entry, request.tag);
  }

  /// Gives prepared entries to the kernel. What it cannot take now (EAGAIN, EBUSY) stays in the
  /// ring and goes with the next call.
  void flush_submissions() {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int taken = io_uring_submit(&ring_);
      if (taken > 0 || taken == -EINTR) continue;
      if (taken == 0 || taken == -EAGAIN || taken == -EBUSY) return;
      throw_errno(-taken, "submit to io_uring");
    }
  }

  void drain() noexcept {
    try {
      std::array<IoResult, 64> results;
      while (in_flight_ > 0) {
        wait();
        static_cast<void>(poll(results));
      }
    } catch (const std::exception& error) {
      log_error("io_uring could not be drained: {}", error.what());
    }
  }

  io_uring ring_{};
  std::vector<int> files_;
  std::size_t depth_;
  std::size_t in_flight_ = 0;  // taken by submit, result not polled yet
};

}  // namespace

std::unique_ptr<IoEngine> make_uring_engine(const EngineOptions& options) {
  return std::make_unique<UringEngine>(options);
}

}  // namespace spillway::nvme_swap::detail
