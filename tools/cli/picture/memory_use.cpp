#include "tools/cli/picture/memory_use.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/plan/placement/pool_table.hpp"
#include "runtime/plan/placement/pools.hpp"
#include "tools/cli/plan_text.hpp"

namespace spillway::cli {
namespace {

using nlohmann::ordered_json;
using plan::PoolKind;
using plan::Tier;

constexpr std::size_t kSamples = 240;

/// Bytes that come into use at an instant, or go out of it.
struct Change {
  double at = 0;
  std::int64_t bytes = 0;
};

/// A buffer while the ops are walked through: since when it holds something that is needed, and
/// when that was used last. Never used: nothing is known of it.
struct Content {
  bool known = false;
  double since = 0;
  double last_use = 0;
};

/// Follows the buffers of a step whose contents come and go.
class Uses {
 public:
  Uses(const plan::StepPlan& step, const plan::Prediction& prediction, const plan::Pools& pools)
      : pools_(pools) {
    for (std::size_t pool = 0; pool < plan::kPoolCount; ++pool) {
      contents_[pool].resize(pools[pool].ends.size());
    }
    for (std::size_t i = 0; i < step.ops.size(); ++i) {
      add(step.accesses_of(step.ops[i]), prediction.ops[i]);
    }
    for (std::size_t pool = 0; pool < plan::kPoolCount; ++pool) {
      // What a step finds there the step before has left: so does this one.
      const bool stays = plan::rule_of(static_cast<PoolKind>(pool)).found != plan::Found::nothing;
      for (std::size_t buffer = 0; buffer < contents_[pool].size(); ++buffer) {
        close(pool, buffer, stays ? prediction.step_seconds : contents_[pool][buffer].last_use);
      }
    }
  }

  [[nodiscard]] std::vector<Change>& of(PoolKind pool) {
    return changes_[static_cast<std::size_t>(pool)];
  }

 private:
  void add(std::span<const plan::Access> accesses, const plan::OpTiming& timing) {
    for (const plan::Access& access : accesses) {
      const auto pool = static_cast<std::size_t>(access.buffer.pool);
      for (std::uint32_t k = 0; k < access.buffer.count; ++k) {
        const std::uint32_t buffer = access.buffer.first + k;
        if (buffer >= contents_[pool].size()) continue;
        Content& content = contents_[pool][buffer];
        if (access.writes && !reads(accesses, access.buffer.pool, buffer)) {
          close(pool, buffer, content.last_use);
          content = {.known = true, .since = timing.start, .last_use = timing.end};
        } else if (!content.known) {
          content = {.known = true, .since = 0, .last_use = timing.end};
        }
        content.last_use = std::max(content.last_use, timing.end);
      }
    }
  }

  static bool reads(std::span<const plan::Access> accesses, PoolKind pool, std::uint32_t buffer) {
    return std::ranges::any_of(accesses, [&](const plan::Access& access) {
      return !access.writes && access.buffer.pool == pool && access.buffer.first <= buffer &&
             buffer < access.buffer.first + access.buffer.count;
    });
  }

  void close(std::size_t pool, std::size_t buffer, double end) {
    const Content& content = contents_[pool][buffer];
    if (!content.known || end <= content.since) return;
    const auto index = static_cast<std::uint32_t>(buffer);
    const auto bytes =
        static_cast<std::int64_t>(pools_[pool].ends[buffer] - pools_[pool].offset(index));
    changes_[pool].push_back({content.since, bytes});
    changes_[pool].push_back({end, -bytes});
  }

  const plan::Pools& pools_;
  std::array<std::vector<Content>, plan::kPoolCount> contents_;
  std::array<std::vector<Change>, plan::kPoolCount> changes_;
};

/// Returns the most that is in use in each part of the step. Of changes at one instant, those that
/// free come first.
std::vector<std::uint64_t> sampled(std::vector<Change> changes, double seconds) {
  std::ranges::sort(changes, [](const Change& a, const Change& b) {
    return a.at != b.at ? a.at < b.at : a.bytes < b.bytes;
  });
  std::vector<std::uint64_t> most(kSamples);
  std::int64_t now = 0;
  std::size_t next = 0;
  for (std::size_t sample = 0; sample < kSamples; ++sample) {
    const double end = seconds * static_cast<double>(sample + 1) / kSamples;
    const bool is_last = sample + 1 == kSamples;
    std::int64_t highest = now;
    for (; next < changes.size() && (changes[next].at < end || is_last); ++next) {
      now += changes[next].bytes;
      highest = std::max(highest, now);
    }
    most[sample] = static_cast<std::uint64_t>(highest);
  }
  return most;
}

/// A line of the memory table.
struct Line {
  Tier tier{};
  std::uint64_t taken = 0;
  std::vector<Change> changes;
};

std::vector<std::pair<std::string_view, Line>> lines_of(const engine::Planned& planned,
                                                        const plan::StepPlan& step,
                                                        const plan::Prediction& prediction) {
  const plan::Pools pools = plan::make_pools(planned.workload, planned.placement);
  Uses uses(step, prediction, pools);
  std::vector<std::pair<std::string_view, Line>> lines;
  for (std::size_t index = 0; index < plan::kPoolCount; ++index) {
    const auto pool = static_cast<PoolKind>(index);
    const std::uint64_t bytes = pools[index].bytes().value();
    if (bytes == 0) continue;
    const std::string_view label = plan::label_of(pool);
    auto line = std::ranges::find_if(lines, [&](const auto& each) {
      return each.first == label && each.second.tier == plan::tier_of(pool);
    });
    if (line == lines.end()) {
      line = lines.insert(line, {label, {.tier = plan::tier_of(pool), .taken = 0, .changes = {}}});
    }
    line->second.taken += bytes;
    std::vector<Change>& changes = line->second.changes;
    // No op names the constants, which all ops read.
    if (pool == PoolKind::constants || plan::rule_of(pool).found == plan::Found::everything) {
      changes.push_back({0, static_cast<std::int64_t>(bytes)});
    } else {
      changes.insert(changes.end(), uses.of(pool).begin(), uses.of(pool).end());
    }
  }
  return lines;
}

}  // namespace

ordered_json memory_use(const engine::Planned& planned, const plan::StepPlan& step,
                        const plan::Prediction& prediction) {
  const auto lines = lines_of(planned, step, prediction);
  const std::vector<plan::MemoryItem> items = planned.memory();
  ordered_json tiers = ordered_json::array();
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    const Bytes budget = budget_of(planned.budgets, tier);
    ordered_json entry{{"tier", plan::name_of(tier)},
                       {"budget", nullptr},
                       {"taken", plan::total(items, tier).value()},
                       {"lines", ordered_json::array()}};
    if (budget < plan::kUncounted) entry["budget"] = budget.value();
    for (const auto& [label, line] : lines) {
      if (line.tier != tier) continue;
      entry["lines"].push_back({{"label", label},
                                {"taken", line.taken},
                                {"in_use", sampled(line.changes, prediction.step_seconds)}});
    }
    if (!entry["lines"].empty()) tiers.push_back(std::move(entry));
  }
  return tiers;
}

}  // namespace spillway::cli
