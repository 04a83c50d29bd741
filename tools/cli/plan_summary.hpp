// A plan in a few lines for people: whether it fits, how long a step takes, what bounds it and what
// would be faster.
#pragma once

#include <string>

#include "tools/cli/plan_text.hpp"

namespace spillway::cli {

/// Returns three lines at most, and one more where this is one of several ranks.
[[nodiscard]] std::string to_summary(const PlanView& view);

}  // namespace spillway::cli
