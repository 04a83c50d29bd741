// What GPUs can do by their data sheets: the denominator of MFU.
#pragma once

#include <optional>
#include <string_view>

#include "runtime/base/dtype.hpp"

namespace spillway::bench {

/// Returns the dense FLOP/s of the matrix units (fp32: in TF32) of the GPU that the driver calls
/// `gpu`, without sparsity and with fp32 sums; absent for one that the table does not have.
[[nodiscard]] std::optional<double> peak_flops(std::string_view gpu, DType compute);

}  // namespace spillway::bench
