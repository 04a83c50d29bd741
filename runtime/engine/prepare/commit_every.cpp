#include "runtime/engine/prepare/commit_every.hpp"

#include <algorithm>
#include <cmath>

namespace spillway::engine {
namespace {

/// Commits of state that lives in memory may keep the disk busy for this share of the time: they
/// are written behind a step, but wear the drive.
constexpr double kCommitShare = 0.05;

}  // namespace

std::uint64_t planned_commit_every(const plan::Workload& workload, const plan::Placement& placement,
                                   const plan::MachineProfile& profile, double step_seconds) {
  double bytes = 0;
  for (std::uint32_t b = 0; b < workload.blocks.size(); ++b) {
    if (placement.blocks[b].state == plan::Tier::nvme) continue;
    const Bytes state = plan::slot_bytes(placement.format, workload.shard_elements(b));
    bytes += static_cast<double>(state.value());
  }
  if (bytes == 0 || profile.nvme_write == 0) return 1;
  const double commit_seconds = bytes / profile.nvme_write;
  return static_cast<std::uint64_t>(
      std::ceil(std::max(1.0, commit_seconds / (kCommitShare * step_seconds))));
}

}  // namespace spillway::engine
