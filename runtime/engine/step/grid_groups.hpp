// The groups that a rank of a grid belongs to: the replicas of its stage, which sum gradients, the
// stages of a pipeline, which exchange activations, and the tensor group, which adds up what passes
// make. They are on the memory of hosts, and on that of GPUs where ranks have some.
#pragma once

#include <memory>

#include "comm/communicator.hpp"
#include "comm/device_communicator.hpp"
#include "runtime/base/units.hpp"
#include "runtime/plan/pipeline/grid.hpp"

namespace spillway::engine {

/// Owns this rank's ends, on the memory that `Group` moves; each is null for a group of one.
template <class Group>
struct GridGroups {
  std::unique_ptr<Group> replicas;
  std::unique_ptr<Group> stages;  ///< rank i of it is of stage i
  std::unique_ptr<Group> tensor;  ///< rank i of it has part i
};

/// Joins the groups of `rank`. `job` has the ranks of the grid. Every rank calls it.
template <class Group>
[[nodiscard]] GridGroups<Group> join_grid(Group& job, Rank rank, const plan::Grid& grid);

/// Views this rank's ends on the memory of GPUs; each is null for a group of one.
struct GpuEnds {
  comm::DeviceCommunicator* job = nullptr;  ///< of all ranks, which watches the others
  comm::DeviceCommunicator* replicas = nullptr;
  comm::DeviceCommunicator* line = nullptr;    ///< of the stages of a pipeline
  comm::DeviceCommunicator* tensor = nullptr;  ///< of a tensor group
};

/// Returns the ends of a rank that has joined the grid's groups; where all ranks are replicas,
/// there are none but the job.
[[nodiscard]] GpuEnds gpu_ends(comm::DeviceCommunicator& job,
                               const GridGroups<comm::DeviceCommunicator>& groups,
                               const plan::Grid& grid);

}  // namespace spillway::engine
