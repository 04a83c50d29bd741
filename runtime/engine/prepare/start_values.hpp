// What a run starts with, as far as its request leaves it open. Control thread only.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/data/sampler.hpp"
#include "runtime/engine/run/directory.hpp"
#include "runtime/engine/train_loop.hpp"
#include "runtime/model/parameter_layout.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::engine {

/// Returns the architecture that the request names, or that of the run that it resumes.
[[nodiscard]] model::ModelConfig model_of(const TrainRequest& request, const RunDirectory& run);

/// Returns the configured steps, or one epoch of so many ranks.
[[nodiscard]] std::uint64_t steps_of(const config::TrainOptions& options,
                                     const data::Sampler& sampler, std::uint32_t ranks);

/// Returns the steps between commits, so that writing the state that lives in memory takes a
/// twentieth of their time; 1 if all state is on disk.
[[nodiscard]] std::uint64_t planned_commit_every(const plan::Workload& workload,
                                                 const plan::Placement& placement,
                                                 const plan::MachineProfile& profile,
                                                 double step_seconds);

/// Returns the masters of step 0: the checkpoint's that the request starts from, or random ones.
[[nodiscard]] std::unique_ptr<model::ParameterSource> initial_parameters(
    const TrainRequest& request, const model::ModelConfig& config, const model::ModelLayout& layout,
    std::uint64_t seed);

}  // namespace spillway::engine
