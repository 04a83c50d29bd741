// The groups that a rank of a pipeline belongs to: the replicas of its stage, which sum gradients,
// and the stages, which exchange activations.
#pragma once

#include <memory>

#include "comm/communicator.hpp"
#include "runtime/plan/pipeline/grid.hpp"

namespace spillway::engine {

/// This rank's ends; each is null for a group of one.
struct StageGroups {
  std::unique_ptr<comm::Communicator> replicas;
  std::unique_ptr<comm::Communicator> stages;  ///< rank i of it is of stage i
};

/// `job` has the ranks of the grid, of more than one stage. Every rank calls it.
[[nodiscard]] StageGroups join_stage(comm::Communicator& job, const plan::Grid& grid);

}  // namespace spillway::engine
