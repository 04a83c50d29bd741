// A run in numbers after it has trained, from the files in its directory: what was planned, what
// was measured, and how the loss went.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/engine/prepare/planner.hpp"
#include "runtime/engine/train_events.hpp"

namespace spillway::cli {

/// Replaces RUN/plan.json, which a report shows. The file is for eyes only: an error goes to `note`
/// and ends nothing.
void keep_plan(const std::filesystem::path& run, const engine::TrainPlan& plan,
               const engine::Note& note);

/// Returns `run` (directory, id, model, number of steps), `plan` and `picture` (null for a run of
/// an earlier version), `measured` (null without a trace) and `history`: lists of equal length with
/// `step`, `loss`, `grad_norm`, `lr` and `tokens_per_second`, each the mean of as many steps as
/// `steps_a_point` says, and `validation`, pairs of a step and its loss. Numbers that are not
/// finite are null. Throws `Error{invalid_argument}` if there is no run in the directory, and
/// `Error{corrupt_data}` for a damaged plan or trace.
[[nodiscard]] nlohmann::ordered_json run_report(const std::filesystem::path& run);
[[nodiscard]] std::string run_report_text(const nlohmann::ordered_json& report);
/// Returns the title of the report's page.
[[nodiscard]] std::string run_report_title(const std::filesystem::path& run);

}  // namespace spillway::cli
