// The part of a placement's pools that one plan needs.
#include <algorithm>
#include <array>
#include <vector>

#include "runtime/plan/placement/pools.hpp"

namespace spillway::plan {

Pools used_by(const StepPlan& plan, Pools pools) {
  std::array<std::vector<bool>, kPoolCount> used;
  for (std::size_t p = 0; p < kPoolCount; ++p) used[p].resize(pools[p].ends.size());
  for (const Op& op : plan.ops) {
    for (const Access& access : plan.accesses_of(op)) {
      const auto p = static_cast<std::size_t>(access.buffer.pool);
      std::fill_n(used[p].begin() + access.buffer.first, access.buffer.count, true);
    }
  }
  for (const PoolKind kept : {PoolKind::constants, PoolKind::host_leaves}) {
    auto& buffers = used[static_cast<std::size_t>(kept)];
    if (!buffers.empty()) buffers.back() = true;
  }
  for (std::size_t p = 0; p < kPoolCount; ++p) {
    std::uint64_t before = 0, kept = 0;
    for (std::size_t i = 0; i < used[p].size(); ++i) {
      std::uint64_t& end = pools[p].ends[i];
      if (used[p][i]) kept += end - before;
      before = end;
      end = kept;
    }
  }
  return pools;
}

}  // namespace spillway::plan
