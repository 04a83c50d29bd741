// How much memory a run that does not fit would take. Control thread only.
#pragma once

#include <string>

#include "runtime/config/train_options.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/plan/search/choose.hpp"

namespace spillway::engine {

/// Returns the sizes of memory with which the run fits, as a text: "--host-memory of at least 3.1
/// GiB", or of both memories where one is not enough. A size that is written so and given fits. Of
/// a memory of which no flag gives so much, by `budgets_for`, the text says that it has to be free.
[[nodiscard]] std::string budgets_that_fit(const config::TrainOptions& options,
                                           const plan::Workload& workload,
                                           const plan::Budgets& budgets,
                                           const plan::Shortage& shortage,
                                           const BudgetsFor& budgets_for);

}  // namespace spillway::engine
