#include "nvme_swap/io_engine.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>

#include "nvme_swap/detail/aio_engine.hpp"
#include "nvme_swap/detail/posix_engine.hpp"
#include "nvme_swap/detail/uring_engine.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::nvme_swap {

std::string_view name_of(IoOperation operation) {
  switch (operation) {
    case IoOperation::read: return "read";
    case IoOperation::write: return "write";
    case IoOperation::flush: return "flush";
  }
  return "unknown";
}

EngineKind parse_engine(std::string_view name) {
  if (name == "auto") return EngineKind::automatic;
  if (name == "uring") return EngineKind::uring;
  if (name == "aio") return EngineKind::aio;
  if (name == "posix") return EngineKind::posix;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unknown I/O engine '{}': choose auto, uring, aio or posix", name));
}

namespace {

/// The kernel serves buffered requests of uring and aio on the caller's thread or by punting them
/// to threads of its own; our own threads do that as well, and say so.
bool any_is_buffered(std::span<const int> files) {
  return std::any_of(files.begin(), files.end(), [](int file) {
    const int flags = ::fcntl(file, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) == 0;
  });
}

std::unique_ptr<IoEngine> make_automatic_engine(const EngineOptions& options) {
  if (any_is_buffered(options.files)) {
    log_info("disk I/O uses the posix engine: a file is read and written through the page cache");
    return detail::make_posix_engine(options);
  }
  for (const auto make : {detail::make_uring_engine, detail::make_aio_engine}) {
    try {
      return make(options);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_supported) throw;
      log_info("disk I/O falls back: {}", error.what());
    }
  }
  log_info("disk I/O uses the posix engine");
  return detail::make_posix_engine(options);
}

}  // namespace

std::unique_ptr<IoEngine> make_engine(EngineKind kind, const EngineOptions& options) {
  check(options.queue_depth > 0 && options.queue_depth <= detail::kMaxQueueDepth,
        ErrorCode::invalid_argument,
        fmt::format("an I/O queue depth of {} is not between 1 and {}", options.queue_depth,
                    detail::kMaxQueueDepth));
  switch (kind) {
    case EngineKind::automatic: return make_automatic_engine(options);
    case EngineKind::uring: return detail::make_uring_engine(options);
    case EngineKind::aio: return detail::make_aio_engine(options);
    case EngineKind::posix: break;
  }
  return detail::make_posix_engine(options);
}

}  // namespace spillway::nvme_swap
