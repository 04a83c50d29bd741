// What a trainer of another framework's parameters needs of the machine, and whether it is there.
// Any thread.
#pragma once

#include "runtime/base/memory_budget.hpp"
#include "runtime/config/train_options.hpp"
#include "runtime/engine/embedded/plan/layout.hpp"
#include "runtime/engine/embedded_forecast.hpp"
#include "runtime/plan/placement/placement.hpp"

namespace spillway::engine {

/// Returns the options of the step engine below such a trainer.
[[nodiscard]] config::TrainOptions train_options(const EmbeddedOptions& options);

[[nodiscard]] EmbeddedNeeds needs_of(const EmbeddedOptions& options, const EmbeddedLayout& layout,
                                     const plan::Placement& placement);

/// Returns `memory` with what the trainer finds available: also as much of `freed_values` as is
/// there only until gradients come, and not what others will have taken, `beside`.
[[nodiscard]] MemoryBudget available_to(const EmbeddedOptions& options, MemoryBudget memory,
                                        Bytes gradients, Bytes beside);

/// Throws `Error{does_not_fit}` unless the machine has memory for `needs`; the error names the
/// memory, the bytes, the budget, what limits it and what would fit. `beside`: bytes of host memory
/// that are free and will be taken.
void check_memory(const EmbeddedOptions& options, const EmbeddedNeeds& needs, Bytes beside = {});

}  // namespace spillway::engine
