// The Linux AIO engine, for kernels without io_uring. libaio is included by aio_engine.cpp and
// nowhere else. Asynchronous for O_DIRECT files; for others the kernel does the work in `submit`.
#pragma once

#include <memory>

#include "nvme_swap/io_engine.hpp"

namespace spillway::nvme_swap::detail {

/// Throws `Error{not_supported}` with the reason when the kernel gives no context.
[[nodiscard]] std::unique_ptr<IoEngine> make_aio_engine(const EngineOptions& options);

}  // namespace spillway::nvme_swap::detail
