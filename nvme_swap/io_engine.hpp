// IoEngine: submit and poll of file reads, writes and flushes. Engines: `uring`, `aio`, `posix`.
// One contract suite runs over every engine; `FailingEngine` adapts any of them for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "runtime/base/units.hpp"
#include "runtime/base/wake_signal.hpp"

namespace spillway::nvme_swap {

enum class EngineKind : std::uint8_t { automatic, uring, aio, posix };
enum class IoOperation : std::uint8_t { read, write, flush };

[[nodiscard]] std::string_view name_of(IoOperation operation);

/// One transfer or flush. Offset, length and address are multiples of `kPageBytes` for O_DIRECT
/// files.
struct IoRequest {
  IoOperation operation = IoOperation::read;
  int file = -1;  ///< a descriptor given to `IoEngine` at construction
  FileOffset offset{};
  std::byte* data = nullptr;  ///< read into, or written from; unused by flush
  std::size_t length = 0;
  std::uint64_t tag = 0;  ///< returned with the result
};

/// `result` is the number of bytes moved (may be short; 0 for a flush) or -errno.
struct IoResult {
  std::uint64_t tag = 0;
  std::int64_t result = 0;
};

/// Options of `uring` alone. Each is used where kernel and device have it; one that is not used is
/// logged with the reason and missing from `IoEngine::abilities`.
struct UringOptions {
  bool submission_thread = false;   ///< SQPOLL: a kernel thread submits; no system call for it
  bool completion_polling = false;  ///< IOPOLL: that thread also polls the device; needs the former
};

struct EngineOptions {
  std::span<const int> files{};  ///< registered where the engine can; outlive the engine
  std::size_t queue_depth = 32;  ///< requests in flight, counted until their result is polled
  WakeSignal* wake = nullptr;    ///< notified on completions; outlives the engine
  /// Memory that requests will use, registered where the engine can: its pages then stay pinned
  /// instead of being pinned by every request. Requests may use other memory. Outlives the engine.
  std::span<const std::span<std::byte>> buffers{};
  UringOptions uring{};
};

/// What an engine found usable on this machine.
struct EngineAbilities {
  bool registered_buffers = false;
  bool submission_thread = false;
  bool completion_polling = false;
};

/// Raw transfers: short results are reported, not continued, and EINTR and EAGAIN are results like
/// any other; `TileStore` continues and retries them. A flush covers the writes whose results were
/// polled before it was submitted. Destroying an engine waits for the requests in flight, so that
/// no buffer is touched afterwards. Control thread only. Where the kernel refuses a call that
/// serves all requests (io_uring_enter, io_getevents), the engine closes: it waits for what the
/// kernel has taken, so that here too no buffer is touched behind its owner's back, and -errno is
/// the result of everything else, now and from then on.
class IoEngine {
 public:
  virtual ~IoEngine() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual EngineAbilities abilities() const { return {}; }
  /// Returns why the engine has closed; empty while it has not.
  [[nodiscard]] virtual std::string_view failure() const { return {}; }
  /// Takes a prefix of `requests` and returns its length: fewer when the queue is full.
  [[nodiscard]] virtual std::size_t submit(std::span<const IoRequest> requests) = 0;
  /// Collects finished requests without blocking; returns how many were written to `results`.
  [[nodiscard]] virtual std::size_t poll(std::span<IoResult> results) = 0;
  /// Blocks until at least one request in flight has finished, or at once if none is in flight.
  /// Not on the step path.
  virtual void wait() = 0;
};

/// Makes, for `automatic`, the first of uring, aio and posix that runs here, and logs why it falls
/// back; posix for files without O_DIRECT. Throws `Error{not_supported}` when a named engine cannot
/// run here.
[[nodiscard]] std::unique_ptr<IoEngine> make_engine(EngineKind kind, const EngineOptions& options);
/// Reads "auto", "uring", "aio" or "posix"; throws `Error{invalid_argument}` otherwise.
[[nodiscard]] EngineKind parse_engine(std::string_view name);

}  // namespace spillway::nvme_swap
