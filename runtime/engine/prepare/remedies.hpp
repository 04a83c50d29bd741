// What would make a run fit that does not: changes of its options, planned again one by one, and
// two by two where none alone is enough.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/search/choose.hpp"

namespace spillway::engine {

/// Returns a text for larger budgets and, for every kind of change, one for the smallest that fits,
/// with what it then takes of each tier. If no change fits, returns some pairs of changes that do;
/// if no pair fits either, the changes that lack less, with the budgets that they take. A budget is
/// that of a flag where the machine gives so much for it (`budgets_for`, as `place` takes it), else
/// of free memory.
[[nodiscard]] std::vector<std::string> what_would_fit(const model::ModelConfig& config,
                                                      const config::TrainOptions& options,
                                                      const plan::Budgets& budgets,
                                                      const plan::Shortage& shortage,
                                                      const BudgetsFor& budgets_for);

}  // namespace spillway::engine
