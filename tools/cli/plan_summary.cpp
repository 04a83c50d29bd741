#include "tools/cli/plan_summary.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace spillway::cli {
namespace {

using plan::Lane;
using plan::Tier;

/// The least share of a step that is worth a word.
constexpr double kWorthAWord = 0.01;

std::string ranks_line(const engine::Planned& planned) {
  std::vector<std::string> parts;
  for (const RankLine& line : rank_lines(planned)) {
    parts.push_back(fmt::format("{} {}", line.title, line.text));
  }
  return parts.empty() ? "" : fmt::format("rank       {}\n", fmt::join(parts, "; "));
}

std::string fits_line(const engine::Planned& planned) {
  const std::vector<plan::MemoryItem> memory = planned.memory();
  std::vector<std::string> parts;
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    const Bytes taken = plan::total(memory, tier);
    if (taken == Bytes{}) continue;
    const Bytes budget = budget_of(planned.budgets, tier);
    parts.push_back(fmt::format(
        "{} {}{}", tier == Tier::nvme ? "disk" : plan::name_of(tier), format_bytes(taken),
        budget < plan::kUncounted ? fmt::format(" of {}", format_bytes(budget)) : ""));
  }
  return fmt::format("fits       {}\n", fmt::join(parts, ", "));
}

/// What a lane does, for who does not know lanes.
std::string_view work_of(Lane lane, config::DeviceKind device) {
  switch (lane) {
    case Lane::gpu: return shown_name(lane, device);
    case Lane::h2d: return "copies to the device";
    case Lane::d2h: return "copies from the device";
    case Lane::cpu: return "updates on the CPU";
    case Lane::net: return "the other ranks";
    case Lane::nvme_read: return "disk reads";
    case Lane::nvme_write: return "disk writes";
    case Lane::external: return "the framework";
  }
  return "";
}

/// How busy the bounding lane is, and what runs while the device waits.
std::string bound_text(const engine::Planned& planned) {
  const plan::Prediction& prediction = planned.prediction;
  const auto share = [&](double seconds) { return seconds / prediction.step_seconds; };
  const plan::LaneUse& bounding = prediction.lanes[static_cast<std::size_t>(prediction.bounding)];
  std::string text = fmt::format(" ({:.0f} % busy)", 100 * share(bounding.busy));
  std::pair<double, Lane> most{0, Lane::gpu};
  for (std::size_t lane = 0; lane < plan::kMachineLanes; ++lane) {
    most = std::max(most, {share(prediction.lanes[lane].exposed), static_cast<Lane>(lane)});
  }
  const auto [waits, lane] = most;
  if (waits < kWorthAWord) return text;
  return text + fmt::format("; {} waits {:.0f} % of it for {}",
                            shown_name(Lane::gpu, planned.device()), 100 * waits,
                            work_of(lane, planned.device()));
}

std::string next_line(const PlanView& view) {
  const auto tokens = static_cast<double>(plan::tokens_of_step(view.plan.workload));
  std::vector<std::string> parts;
  parts.reserve(view.memory.size() + 1);
  for (const MoreMemory& more : view.memory) {
    parts.push_back(fmt::format("{} of {} memory give {}", format_bytes(more.taken),
                                plan::name_of(more.tier), shown_rate(tokens / more.step_seconds)));
  }
  if (view.faster) {
    parts.push_back(fmt::format("spillway.rounds {} gives {} (other rounding)", view.faster->rounds,
                                shown_rate(tokens / view.faster->step_seconds)));
  }
  return parts.empty() ? "" : fmt::format("next       {}\n", fmt::join(parts, "; "));
}

}  // namespace

std::string to_summary(const PlanView& view) {
  return fmt::format("{}{}predicted  {}{}\n{}", ranks_line(view.plan), fits_line(view.plan),
                     predicted_text(view.plan), bound_text(view.plan), next_line(view));
}

}  // namespace spillway::cli
