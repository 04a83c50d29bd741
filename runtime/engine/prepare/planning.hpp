// What options and model say before a plan is made: resolved options, the workload, the grid, and a
// placement that fits. Control thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/ranks.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Returns the largest gradient_accumulation_steps with which a step of the model is planned.
[[nodiscard]] std::uint64_t most_micro_batches(const model::ModelConfig& config);

/// Fills in what a configuration may leave open: device, context, threads. Throws
/// `Error{invalid_argument}` if the context is too long for the model. Call it before everything
/// else.
void resolve(config::TrainOptions& options, const model::ModelConfig& config);

/// Returns what the planner reads of the model. It needs no device: a plan may be for one that this
/// machine lacks.
[[nodiscard]] plan::Workload make_workload(const model::ModelConfig& config,
                                           const config::TrainOptions& options,
                                           const plan::Ranks& ranks = {});

/// Returns how so many ranks share out the work. Throws `Error{invalid_argument}` if they do not
/// divide into the stages of a pipeline that the options name.
[[nodiscard]] plan::Grid grid_of(const config::TrainOptions& options, std::uint32_t ranks);

/// Returns the first of `count` ranks of one stage, with the stage of ZeRO and the order of sums
/// that the options name.
[[nodiscard]] plan::Ranks ranks_of(const config::TrainOptions& options, std::uint32_t count);

/// Returns the folders in which the run keeps its swap files: `options.nvme`, or RUN/state.
[[nodiscard]] std::vector<std::filesystem::path> state_directories(
    const config::TrainOptions& options, const std::filesystem::path& run);

/// Returns a placement within the budgets. Throws `Error{does_not_fit}` that names the tier, the
/// bytes and what would make it fit.
[[nodiscard]] plan::Placement place(const model::ModelConfig& config,
                                    const config::TrainOptions& options,
                                    const plan::Workload& workload, const plan::Budgets& budgets);

}  // namespace spillway::engine
