// Pipelines that stay full: between the steps of PipeDream and of PipeDream-2BW nothing waits for
// the last pass backward, so that a pass may run on weights that later updates have changed. Both
// run the passes of 1F1B; they differ in when a stage updates, and in which weights a pass uses.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/pipeline/schedule.hpp"
#include "runtime/plan/pipeline/timeline.hpp"

namespace spillway::plan {

/// Returns the passes of so many steps in a row, from an empty pipeline to an empty one. Their
/// rounds count on from step to step.
[[nodiscard]] std::vector<std::vector<Pass>> passes_of_steps(const Pipeline& pipeline,
                                                             std::uint32_t steps);

/// Number of updates already in the weights that a stage uses for the passes of a round. PipeDream:
/// every update made before the round reaches the stage (weight stashing). PipeDream-2BW: the
/// updates of all earlier steps but the last. Other schedules: the updates of all earlier steps.
[[nodiscard]] std::uint32_t updates_before(const Pipeline& pipeline, std::uint32_t stage,
                                           std::uint32_t round);

/// Number of rounds of the next step whose passes forward a stage runs in a step of a full
/// pipeline; they are in flight when the step ends.
[[nodiscard]] std::uint32_t rounds_begun(const Pipeline& pipeline, std::uint32_t stage);

/// Returns the place of each round of a step among those whose activations a stage keeps. Two
/// rounds of one place are at least `in_flight` rounds apart, in this step and across its end.
/// There are `in_flight` places if that divides the rounds.
[[nodiscard]] std::vector<std::uint32_t> places_of_rounds(std::uint32_t rounds,
                                                          std::uint32_t in_flight);

/// Returns, for each round of a step and each round of later steps that it begins, how many updates
/// of the steps before this one its weights lack.
[[nodiscard]] std::vector<std::uint32_t> ages_of_rounds(const Pipeline& pipeline,
                                                        std::uint32_t stage);

/// The work of each stage in a step of a pipeline that is full when the step begins and ends, and
/// the work that fills it. Rounds of the next step count on from those of this one.
struct FullPipeline {
  std::vector<std::vector<Pass>> passes;
  std::vector<std::vector<StageEntry>> entries;
  std::vector<std::vector<StageEntry>> fill;  ///< ahead of a step that finds it empty
};

/// Returns what each stage does, by stage. A message is sent in the step that makes it.
[[nodiscard]] FullPipeline full_pipeline(const Pipeline& pipeline,
                                         const std::vector<StageSeconds>& seconds);

/// Number of rounds whose activations a stage of a full pipeline keeps at once.
[[nodiscard]] std::uint32_t full_rounds_in_flight(const Pipeline& pipeline, std::uint32_t stage);

/// Returns what a stage has of it beside what every stage has.
[[nodiscard]] StaleStage stale_stage(const Pipeline& pipeline, const FullPipeline& full,
                                     std::uint32_t stage);

/// Returns what a rank without a pipeline has of it whose passes lack the last update
/// (ZeRO-Offload's delayed parameter update): PipeDream-2BW of one stage.
[[nodiscard]] StaleStage delayed_updates(std::uint32_t rounds);

}  // namespace spillway::plan
