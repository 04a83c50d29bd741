// The traffic of an update with no arithmetic: what its speed is measured against.
#pragma once

#include "cpu_adam/adam.hpp"

namespace spillway::cpu_adam {

/// Bytes that one pass over a parameter must read and write: gradient in, master or remainder and
/// moments in and out, 16-bit parameters out and, but for format fp32, in. With 16-bit gradients
/// and parameters 28, 26, 18 and 14.06.
[[nodiscard]] double bytes_per_parameter(StateFormat format, DType gradient, DType parameter);

/// Reads what `kernel` reads and writes what it writes, by whole vectors of its instruction set and
/// the same kinds of stores, in place or out of place, for an optimizer that keeps m and v. What is
/// written is what was read, so the state stays as it is; but `parameters_out` receives bytes of
/// the masters in format fp32. `prefetch_distance` has its effect. Less than a visit (64
/// parameters, 256 in int8) at the end is left out.
void move_traffic(const Kernel& kernel, const UpdateRange& range);

}  // namespace spillway::cpu_adam
