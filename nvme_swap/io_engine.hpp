// IoEngine: submit and poll of file reads, writes and flushes. Engines: `uring`, `posix`.
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

enum class EngineKind : std::uint8_t { automatic, uring, posix };
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

struct EngineOptions {
  std::span<const int> files{};  ///< registered where the engine can; outlive the engine
  std::size_t queue_depth = 32;  ///< requests in flight, counted until their result is polled
  WakeSignal* wake = nullptr;    ///< notified on completions; outlives the engine
};

/// Raw transfers: short results are reported, not continued, and EINTR and EAGAIN are results like
/// any other; `TileStore` continues and retries them. A flush covers the writes whose results were
/// polled before it was submitted. Destroying an engine waits for the requests in flight, so that
/// no buffer is touched afterwards. Control thread only.
class IoEngine {
 public:
  virtual ~IoEngine() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Takes a prefix of `requests` and returns its length: fewer when the queue is full.
  [[nodiscard]] virtual std::size_t submit(std::span<const IoRequest> requests) = 0;
  /// Collects finished requests without blocking; returns how many were written to `results`.
  [[nodiscard]] virtual std::size_t poll(std::span<IoResult> results) = 0;
  /// Blocks until at least one request in flight has finished, or at once if none is in flight.
  /// Not on the step path.
  virtual void wait() = 0;
};

/// `automatic` prefers uring and logs why when it falls back. Throws `Error{not_supported}` when a
/// named engine cannot run here.
[[nodiscard]] std::unique_ptr<IoEngine> make_engine(EngineKind kind, const EngineOptions& options);
/// "auto", "uring" or "posix"; throws `Error{invalid_argument}` otherwise.
[[nodiscard]] EngineKind parse_engine(std::string_view name);

}  // namespace spillway::nvme_swap
