// Whether a step would be faster with more memory: the same step, planned with twice of the
// device's or of the host's. Control thread only.
#pragma once

#include <vector>

#include "runtime/engine/prepare/planned.hpp"
#include "runtime/plan/placement/placement.hpp"

namespace spillway::cli {

struct MoreMemory {
  plan::Tier tier{};
  Bytes taken;  ///< of that memory, by the faster step
  double step_seconds = 0;
};

/// Returns each memory that gains enough to be worth the change, the host's first; none for a stage
/// of a pipeline.
[[nodiscard]] std::vector<MoreMemory> more_memory(const engine::Planned& planned);

}  // namespace spillway::cli
