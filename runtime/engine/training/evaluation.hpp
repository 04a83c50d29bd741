// Evaluation: the mean loss of a model over a token file, by an engine's plan of forward passes.
#pragma once

#include "runtime/data/token_file.hpp"
#include "runtime/engine/step/step_engine.hpp"
#include "runtime/engine/step/step_result.hpp"

namespace spillway::engine {

/// Returns the mean loss over all whole windows of `tokens`, in file order. `executor` runs
/// `plan::build_evaluation` on `engine`. Throws `Error{invalid_argument}` for a file without one.
[[nodiscard]] Evaluation evaluate(StepEngine& engine, Executor& executor,
                                  const data::TokenFile& tokens);

}  // namespace spillway::engine
