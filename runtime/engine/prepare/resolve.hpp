// What options leave open, resolved, and how they share out the ranks. Control thread only.
#pragma once

#include <cstdint>

#include "runtime/config/train_options.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/ranks.hpp"

namespace spillway::engine {

/// Fills in what a configuration may leave open: device and what kind it is of,
/// context, threads. Throws
/// `Error{invalid_argument}` if the context is too long for the model. Call it before everything
/// else.
void resolve(config::TrainOptions& options, const model::ModelConfig& config);

/// Returns how so many ranks share out the work. Throws `Error{invalid_argument}` if they do not
/// divide into the stages of a pipeline that the options name.
[[nodiscard]] plan::Grid grid_of(const config::TrainOptions& options, std::uint32_t ranks);

/// Returns the first of `count` ranks of one stage, with the stage of ZeRO and the order of sums
/// that the options name.
[[nodiscard]] plan::Replicas replicas_of(const config::TrainOptions& options, std::uint32_t count);

}  // namespace spillway::engine
