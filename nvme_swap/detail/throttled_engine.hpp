// An adaptor that makes any engine as slow as a disk of a given bandwidth, for tests and
// simulation.
#pragma once

#include <memory>

#include "nvme_swap/io_engine.hpp"

namespace spillway::nvme_swap::detail {

/// Makes reads and writes share `gigabytes_per_second` (10^9), as on a real drive; flushes cost
/// nothing. Holds results back until the disk would have delivered.
[[nodiscard]] std::unique_ptr<IoEngine> make_throttled_engine(std::unique_ptr<IoEngine> inner,
                                                              const EngineOptions& options,
                                                              double gigabytes_per_second);

}  // namespace spillway::nvme_swap::detail
