#include "runtime/engine/step/grid_groups.hpp"

#include <vector>

namespace spillway::engine {

template <class Group>
GridGroups<Group> join_grid(Group& job, Rank rank, const plan::Grid& grid) {
  const auto group = [&job](std::uint32_t first, std::uint32_t distance, std::uint32_t count) {
    std::vector<Rank> members;
    for (std::uint32_t i = 0; i < count; ++i) members.emplace_back(first + i * distance);
    return count == 1 ? nullptr : job.subgroup(members);
  };
  const std::uint32_t stage = grid.stage_of(rank.value());
  const std::uint32_t replica = grid.replica_of(rank.value());
  const std::uint32_t part = grid.part_of(rank.value());
  GridGroups<Group> groups;
  groups.replicas = group(grid.rank_of(stage, 0, part), grid.tensor, grid.replicas);
  groups.stages = group(grid.rank_of(0, replica, part), grid.replicas * grid.tensor, grid.stages);
  groups.tensor = group(grid.rank_of(stage, replica, 0), 1, grid.tensor);
  return groups;
}

template GridGroups<comm::Communicator> join_grid(comm::Communicator&, Rank, const plan::Grid&);
template GridGroups<comm::DeviceCommunicator> join_grid(comm::DeviceCommunicator&, Rank,
                                                        const plan::Grid&);

GpuEnds gpu_ends(comm::DeviceCommunicator& job, const GridGroups<comm::DeviceCommunicator>& groups,
                 const plan::Grid& grid) {
  return {.job = &job,
          .replicas = grid.all_replicas() ? &job : groups.replicas.get(),
          .line = groups.stages.get(),
          .tensor = groups.tensor.get()};
}

}  // namespace spillway::engine
