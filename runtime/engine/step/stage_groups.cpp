#include "runtime/engine/step/stage_groups.hpp"

#include <vector>

namespace spillway::engine {

StageGroups join_stage(comm::Communicator& job, const plan::Grid& grid) {
  const auto group = [&job](std::uint32_t first, std::uint32_t distance, std::uint32_t count) {
    std::vector<Rank> members;
    for (std::uint32_t i = 0; i < count; ++i) members.emplace_back(first + i * distance);
    return count == 1 ? nullptr : job.subgroup(members);
  };
  const std::uint32_t rank = job.rank().value();
  StageGroups groups;
  groups.replicas = group(grid.rank_of(grid.stage_of(rank), 0), 1, grid.replicas);
  groups.stages = group(grid.replica_of(rank), grid.replicas, grid.stages);
  return groups;
}

}  // namespace spillway::engine
