// Plans as `spillway plan` and Python's `spillway.plan` make them: for this machine, whose rates
// are measured, or for a described one. Control thread only.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "runtime/engine/prepare/planner.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/search/cut_report.hpp"
#include "tools/bench/machine_description.hpp"
#include "tools/cli/plan_text.hpp"

namespace spillway::cli {

struct PlanRequest {
  config::TrainOptions options;
  model::ModelConfig model;
  std::filesystem::path run;      ///< the run's state would lie on its disk
  std::filesystem::path profile;  ///< what `spillway profile` has measured of this machine
  std::filesystem::path machine;  ///< a name or a description, or empty: this machine
  bench::Nodes nodes{};
  bool compares = true;  ///< the plan tells of the next best cuts and of faster rounds
};

using engine::Note;

struct MadePlan {
  std::optional<bench::MachineDescription> machine;
  engine::Planned plan;
  std::vector<plan::CutReport> cuts{};
  std::optional<FasterRounds> faster{};

  /// Returns what is shown of this; it must not outlive this.
  [[nodiscard]] PlanView view() const;
};

/// Returns what a plan is made for where no configuration is given: a step of 65,536 tokens in
/// windows of 4,096, or the model's longest, AdamW in bf16, the gradient clipped.
[[nodiscard]] config::TrainOptions usual_options(const model::ModelConfig& config);

/// Throws `Error{does_not_fit}` if no placement fits, and `Error{invalid_argument}` for a
/// configuration that the model cannot have.
[[nodiscard]] MadePlan make_plan(const PlanRequest& request, const Note& note);

/// Returns the plan as a document, with the speed on a described machine.
[[nodiscard]] nlohmann::ordered_json to_json(const MadePlan& made,
                                             const model::ModelConfig& config);

/// Returns this user's machine profile: XDG_CACHE_HOME or ~/.cache; empty: no home.
[[nodiscard]] std::filesystem::path default_profile();

/// Returns the architecture by a name of bench/model_shapes, an HF config.json, or a hub's model in
/// the local cache.
[[nodiscard]] model::ModelConfig find_model(const std::filesystem::path& name);

}  // namespace spillway::cli
