// Stages: how a model is cut into the stages of a pipeline, and what of a workload is one stage's.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/pipeline/schedule.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// Returns the layers of each part of the model, chunk by chunk and within a chunk stage by stage:
/// part c * stages + s is chunk c of stage s. The part that computes longest is as short as can be,
/// and no part is empty. Throws `Error{invalid_argument}` if there are fewer layers than parts.
[[nodiscard]] std::vector<BlockRange> cut_layers(const Workload& workload,
                                                 const Pipeline& pipeline);

/// Empties the blocks of layers that `workload.stage` does not run.
void empty_other_stages(Workload& workload);

/// Returns what is left of a workload for one stage. Its rounds are those of the pipeline. Throws
/// `Error{not_supported}` for layers in tiles.
[[nodiscard]] Workload workload_of_stage(const Workload& workload, const Pipeline& cut,
                                         std::uint32_t stage);

}  // namespace spillway::plan
