// What the page of a plan shows beside the plan itself.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/cli/plan_making.hpp"

namespace spillway::cli {

/// Returns `plan` (the document of `to_json`) and its `picture`. On a described machine the picture
/// also has the step with twice the memory of each kind, planned anew.
[[nodiscard]] nlohmann::ordered_json plan_page(const MadePlan& made, const PlanRequest& request,
                                               nlohmann::ordered_json plan);
/// Returns the page's title. `model` is what the user calls the model.
[[nodiscard]] std::string plan_title(const MadePlan& made, const std::filesystem::path& model);

}  // namespace spillway::cli
