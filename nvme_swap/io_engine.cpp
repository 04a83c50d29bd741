#include "nvme_swap/io_engine.hpp"

#include <fmt/format.h>

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
  if (name == "posix") return EngineKind::posix;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unknown I/O engine '{}': choose auto, uring or posix", name));
}

std::unique_ptr<IoEngine> make_engine(EngineKind kind, const EngineOptions& options) {
  check(options.queue_depth > 0 && options.queue_depth <= detail::kMaxQueueDepth,
        ErrorCode::invalid_argument,
        fmt::format("an I/O queue depth of {} is not between 1 and {}", options.queue_depth,
                    detail::kMaxQueueDepth));
  if (kind == EngineKind::posix) return detail::make_posix_engine(options);
  if (kind == EngineKind::uring) return detail::make_uring_engine(options);
  try {
    return detail::make_uring_engine(options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_supported) throw;
    log_info("disk I/O uses the posix engine: {}", error.what());
    return detail::make_posix_engine(options);
  }
}

}  // namespace spillway::nvme_swap
