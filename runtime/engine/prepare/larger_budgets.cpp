#include "runtime/engine/prepare/larger_budgets.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <variant>
#include <vector>

namespace spillway::engine {
namespace {

using plan::Tier;

/// Budgets that are raised one after the other: each memory, and each once more where a run then
/// divides what it has otherwise.
constexpr int kMostRaises = 6;

Bytes& of_tier(plan::Budgets& budgets, Tier tier) {
  return tier == Tier::device ? budgets.device : tier == Tier::host ? budgets.host : budgets.nvme;
}

/// Returns the size in three digits, rounded up.
std::string at_least(Bytes needed) {
  for (Bytes shown = needed;; shown += needed / std::uint64_t{1000}) {
    std::string text = format_bytes(shown);
    if (parse_bytes(text) >= needed) return text;
  }
}

std::string source_of(Tier tier, bool by_flag) {
  switch (tier) {
    case Tier::device: return by_flag ? "--device-memory" : "free device memory";
    case Tier::host: return by_flag ? "--host-memory" : "free host memory";
    case Tier::nvme: break;
  }
  return "--nvme (another directory, or more free space)";
}

class Raise {
 public:
  Raise(const config::TrainOptions& options, const plan::Workload& workload,
        const plan::Budgets& budgets, const BudgetsFor& budgets_for)
      : options_(options), workload_(workload), budgets_(budgets), budgets_for_(budgets_for) {}

  /// Gives the budgets what they lack. Returns whether a flag can.
  bool raise(const plan::Shortage& lacks) {
    if (lacks.tier != Tier::nvme && budgets_for_) {
      (lacks.tier == Tier::device ? options_.device_memory : options_.host_memory) = lacks.needed;
      plan::Budgets given = budgets_for_(options_, workload_);
      if (of_tier(given, lacks.tier) >= lacks.needed) {
        budgets_ = given;
        return true;
      }
    }
    of_tier(budgets_, lacks.tier) = lacks.needed;
    return !budgets_for_;
  }

  [[nodiscard]] const plan::Budgets& budgets() const { return budgets_; }

 private:
  config::TrainOptions options_;
  const plan::Workload& workload_;
  plan::Budgets budgets_;
  const BudgetsFor& budgets_for_;
};

}  // namespace

std::string budgets_that_fit(const config::TrainOptions& options, const plan::Workload& workload,
                             const plan::Budgets& budgets, const plan::Shortage& shortage,
                             const BudgetsFor& budgets_for) {
  Raise raised(options, workload, budgets, budgets_for);
  std::map<Tier, std::string> parts;
  plan::Shortage lacks = shortage;
  for (int i = 0; i < kMostRaises; ++i) {
    const bool by_flag = raised.raise(lacks);
    parts[lacks.tier] =
        fmt::format("{} of at least {}", source_of(lacks.tier, by_flag), at_least(lacks.needed));
    const auto choice =
        plan::choose_placement(workload, raised.budgets(), placement_request(options));
    const auto* const next = std::get_if<plan::Shortage>(&choice);
    if (next == nullptr) break;
    lacks = *next;
  }
  std::vector<std::string> texts;
  texts.reserve(parts.size());
  for (auto& [tier, text] : parts) texts.push_back(std::move(text));
  return fmt::format("{}", fmt::join(texts, " and "));
}

}  // namespace spillway::engine
