// What a configuration leaves as "auto" for the model and the machine to say: the compute type, the
// micro-batch and the accumulation. Control thread only.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "runtime/engine/prepare/budgets.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/ranks.hpp"

namespace spillway::engine {

/// Fills in what `options.automatic` names; `options` are resolved otherwise. The compute type is
/// the checkpoint's; the micro-batch is the largest power of two whose plan fits `budgets` on one
/// of `replicas`, and accumulation makes up what a step is to have: train_batch_size,
/// spillway.tokens_per_step or, as HF Trainer does, 8 windows. Rounds stay open, and the
/// micro-batch with them, until rates are known (step_shape.hpp). Returns a line for each choice.
[[nodiscard]] std::vector<std::string> choose_automatic(config::TrainOptions& options,
                                                        const model::ModelConfig& config,
                                                        const plan::Replicas& replicas,
                                                        const BudgetsFor& budgets);

/// Fills in the same where a run is resumed: what was chosen when the run began.
void take_automatic(config::TrainOptions& options, const config::TrainOptions& recorded);

}  // namespace spillway::engine
