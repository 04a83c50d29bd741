// The posix engine: pread, pwrite and fdatasync on a few threads. Oracle and fallback of `uring`.
#pragma once

#include <memory>

#include "nvme_swap/io_engine.hpp"

namespace spillway::nvme_swap::detail {

[[nodiscard]] std::unique_ptr<IoEngine> make_posix_engine(const EngineOptions& options);

}  // namespace spillway::nvme_swap::detail
