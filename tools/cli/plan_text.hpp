// A plan for people, in whole, and for programs: memory per tier, lanes, step time.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "runtime/engine/prepare/planned.hpp"
#include "runtime/engine/ranks/shown_share.hpp"
#include "runtime/plan/search/cut_report.hpp"
#include "tools/cli/faster_rounds.hpp"
#include "tools/cli/more_memory.hpp"

namespace spillway::cli {

struct PlanView {
  const engine::Planned& plan;
  std::vector<plan::CutReport> cuts{};       ///< empty in a run, which looks for no other cut
  std::vector<engine::ShownShare> shares{};  ///< of the ranks of a run
  std::optional<FasterRounds> faster{};
  std::vector<MoreMemory> memory{};  ///< for the summary alone
};

/// Returns the lane as people know it: what computes is no GPU where FWD-BWD runs on the host.
/// Documents and metrics keep the lane's own name.
[[nodiscard]] std::string_view shown_name(plan::Lane lane, config::DeviceKind device);
[[nodiscard]] Bytes budget_of(const plan::Budgets& budgets, plan::Tier tier);
/// Returns which stage of a pipeline this is, and its layers.
[[nodiscard]] std::string stage_text(const engine::Planned& planned);
/// Returns the step's time, its rate and what bounds it.
[[nodiscard]] std::string predicted_text(const engine::Planned& planned);

/// A line about the ranks of which this is one.
struct RankLine {
  std::string_view title;
  std::string text;
};
[[nodiscard]] std::vector<RankLine> rank_lines(const engine::Planned& planned);
/// Returns a rate as the plan, the live line and the report write it.
[[nodiscard]] std::string shown_rate(double tokens_per_second);

[[nodiscard]] std::string to_text(const PlanView& view);
[[nodiscard]] nlohmann::ordered_json to_json(const PlanView& view);

}  // namespace spillway::cli
