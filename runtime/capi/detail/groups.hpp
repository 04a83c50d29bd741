// Hyperparameters, as the program gives them and as the optimizer takes them. Any thread may call
// anything here.
#pragma once

#include "cpu_adam/adam.hpp"
#include "runtime/capi/spillway.h"

namespace spillway::capi {

/// Returns the hyperparameters. Throws `Error{invalid_argument}` naming the first that is outside
/// its range.
[[nodiscard]] cpu_adam::AdamOptions read_group(const spillway_group* given);
[[nodiscard]] spillway_group group_of(const cpu_adam::AdamOptions& options);

}  // namespace spillway::capi
