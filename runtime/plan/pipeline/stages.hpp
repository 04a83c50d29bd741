// Stages: how a model is cut into the stages of a pipeline, and what of a workload is one stage's.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/pipeline/schedule.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// Returns the layers of each part of the model, chunk by chunk and within a chunk stage by stage:
/// part c * stages + s is chunk c of stage s. No part is empty. Unless the pipeline names the
/// number of layers of each, the largest part's FLOPs are as few as possible. Throws
/// `Error{invalid_argument}` if there are fewer layers than parts, or if the parts that the
/// pipeline names do not make up the model.
[[nodiscard]] std::vector<BlockRange> cut_layers(const Workload& workload,
                                                 const Pipeline& pipeline);

/// Empties the blocks of layers that `workload.stage` does not run.
void empty_other_stages(Workload& workload);

/// Returns one stage's part of a workload, with the rounds of the pipeline. Throws
/// `Error{not_supported}` for layers in tiles, and for what a pipeline that stays full excludes.
[[nodiscard]] Workload workload_of_stage(const Workload& workload, const Pipeline& pipeline,
                                         std::uint32_t stage);

}  // namespace spillway::plan
