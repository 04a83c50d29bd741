// The io_uring engine. liburing is included by uring_engine.cpp and nowhere else.
#pragma once

#include <memory>

#include "nvme_swap/io_engine.hpp"

namespace spillway::nvme_swap::detail {

/// Bounds a ring's size, so that a mistyped depth is an error and not a large allocation.
inline constexpr std::size_t kMaxQueueDepth = 4096;

/// Throws `Error{not_supported}` with the reason when the kernel refuses a ring or lacks an
/// operation.
[[nodiscard]] std::unique_ptr<IoEngine> make_uring_engine(const EngineOptions& options);

}  // namespace spillway::nvme_swap::detail
