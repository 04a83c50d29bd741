// fio as the yardstick of `spillway bench nvme --compare fio`: the same file, pattern and limits.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "nvme_swap/drive_load.hpp"

namespace spillway::bench {

struct FioResult {
  double gigabytes_per_second = 0;
  double cpu_milliseconds_per_gibibyte = 0;
};

/// Returns the version that is installed, "fio-3.33"; nothing without fio.
[[nodiscard]] std::optional<std::string> fio_version();

/// Runs fio over `file` with io_uring, O_DIRECT, registered files and, where the locked-memory
/// limit allows it, registered buffers; mixed traffic in one job and in two, and the faster one
/// counts. What it writes is not what `file` expects: refill it afterwards. Throws with fio's own
/// words if it fails.
[[nodiscard]] FioResult run_fio(const nvme_swap::DriveFile& file, nvme_swap::AccessPattern pattern,
                                std::size_t depth, Bytes block, std::chrono::milliseconds duration);

}  // namespace spillway::bench
