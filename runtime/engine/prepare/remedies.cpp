#include "runtime/engine/prepare/remedies.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "runtime/base/error.hpp"
#include "runtime/engine/prepare/larger_budgets.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/engine/prepare/remedy_families.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/plan/search/choose.hpp"

namespace spillway::engine {
namespace {

using plan::Tier;

/// Pairs of changes that are told: each takes as long to find as several single ones.
constexpr std::size_t kMostPairs = 4;

std::string_view shown_name(Tier tier) {
  return tier == Tier::nvme ? std::string_view("disk") : plan::name_of(tier);
}

/// "device 1.2 GiB, host 3.4 GiB" of a placement.
std::string needs(const plan::Workload& workload, const plan::Placement& placement) {
  const std::vector<plan::MemoryItem> items = plan::memory_items(workload, placement);
  std::vector<std::string> parts;
  for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
    const Bytes bytes = plan::total(items, tier);
    if (bytes == Bytes{}) continue;
    parts.push_back(fmt::format("{} {}", shown_name(tier), format_bytes(bytes)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// A remedy, what is said of it if it fits, and what it still lacks.
struct Outcome {
  Remedy remedy;
  std::string text;
  std::optional<plan::Shortage> lacks;
  [[nodiscard]] bool fits() const { return !lacks.has_value(); }
};

Outcome try_remedy(const model::ModelConfig& config, const plan::Budgets& budgets,
                   const Remedy& remedy) {
  const plan::Workload workload = make_workload(config, remedy.options);
  const auto choice = plan::choose_placement(workload, budgets, placement_request(remedy.options));
  if (const auto* placement = std::get_if<plan::Placement>(&choice)) {
    return {remedy, fmt::format("{} ({})", remedy.what, needs(workload, *placement)), std::nullopt};
  }
  return {remedy, {}, std::get<plan::Shortage>(choice)};
}

/// Returns the first of `count` changes that fits, and else of the last. Each needs less than the
/// one before, so few are tried: the last, and those of a bisection where it fits.
template <class Attempt>
Outcome first_that_fits(std::size_t count, const Attempt& attempt) {
  Outcome best = attempt(count - 1);
  std::size_t first = 0;
  std::size_t fitting = count - 1;
  while (best.fits() && first < fitting) {
    const std::size_t middle = first + (fitting - first) / 2;
    Outcome outcome = attempt(middle);
    if (outcome.fits()) {
      best = std::move(outcome);
      fitting = middle;
    } else {
      first = middle + 1;
    }
  }
  return best;
}

/// Plans runs that are changed in one way or in two.
class RemedySearch {
 public:
  RemedySearch(const model::ModelConfig& config, const plan::Budgets& budgets)
      : config_(config), budgets_(budgets) {}

  /// Those that `resolve` would take; none is empty.
  [[nodiscard]] std::vector<RemedyFamily> usual(const config::TrainOptions& options,
                                                Tier tier) const {
    std::vector<RemedyFamily> list = usual_remedies(options, tier);
    const std::uint64_t most = most_micro_batches(config_);
    for (RemedyFamily& family : list) {
      std::erase_if(family.remedies, [&](const Remedy& remedy) {
        return remedy.options.gradient_accumulation_steps > most;
      });
    }
    std::erase_if(list, [](const RemedyFamily& family) { return family.remedies.empty(); });
    return list;
  }

  [[nodiscard]] Outcome one(const RemedyFamily& family) const {
    return first_that_fits(family.remedies.size(), [&](std::size_t i) {
      return try_remedy(config_, budgets_, family.remedies[i]);
    });
  }

  /// Two changes of which none is enough alone: the second is of what the first still lacks.
  [[nodiscard]] std::vector<std::string> pairs(const config::TrainOptions& options,
                                               Tier tier) const {
    std::vector<std::string> texts;
    std::set<std::pair<RemedyKind, RemedyKind>> tried;
    for (const RemedyFamily& first : usual(options, tier)) {
      const Remedy& most = first.remedies.back();
      const Outcome alone = try_remedy(config_, budgets_, most);
      if (alone.fits()) continue;
      for (const RemedyFamily& second : usual_or_parts(most.options, alone.lacks->tier)) {
        if (exclude_each_other(first.kind, second.kind)) continue;
        if (!tried.insert(std::minmax(first.kind, second.kind)).second) continue;
        Outcome both = first_that_fits(first.remedies.size(), [&](std::size_t i) {
          return with_second(first.remedies[i], alone.lacks->tier, second.kind);
        });
        if (both.fits()) texts.push_back(std::move(both.text));
        if (texts.size() == kMostPairs) return texts;
      }
    }
    return texts;
  }

 private:
  [[nodiscard]] std::vector<RemedyFamily> usual_or_parts(const config::TrainOptions& options,
                                                         Tier tier) const {
    std::vector<RemedyFamily> list = usual(options, tier);
    if (tier != Tier::device) return list;
    if (RemedyFamily parts = layers_in_parts(config_, options); !parts.remedies.empty()) {
      list.push_back(std::move(parts));
    }
    return list;
  }

  /// `first` and the smallest change of the second kind that fits with it.
  [[nodiscard]] Outcome with_second(const Remedy& first, Tier tier, RemedyKind kind) const {
    Outcome best{first, {}, plan::Shortage{}};
    for (RemedyFamily& family : usual_or_parts(first.options, tier)) {
      if (family.kind != kind) continue;
      for (Remedy& remedy : family.remedies) {
        remedy.what = fmt::format("{} together with {}", first.what, remedy.what);
      }
      Outcome outcome = one(family);
      if (outcome.fits()) return outcome;
      best = std::move(outcome);
    }
    return best;
  }

  const model::ModelConfig& config_;
  const plan::Budgets& budgets_;
};

/// Whether a change that is not enough brings the run nearer to fitting.
bool lacks_less(const plan::Shortage& with_change, const plan::Shortage& without) {
  return with_change.tier != without.tier || with_change.needed < without.needed;
}

}  // namespace

std::vector<std::string> what_would_fit(const model::ModelConfig& config,
                                        const config::TrainOptions& options,
                                        const plan::Budgets& budgets,
                                        const plan::Shortage& shortage,
                                        const BudgetsFor& budgets_for) {
  const RemedySearch search(config, budgets);
  std::vector<std::string> advice{
      budgets_that_fit(options, make_workload(config, options), budgets, shortage, budgets_for)};
  std::vector<std::string> not_enough;
  bool any_fits = false;
  for (const RemedyFamily& family : search.usual(options, shortage.tier)) {
    Outcome outcome = search.one(family);
    any_fits = any_fits || outcome.fits();
    if (outcome.fits()) {
      advice.push_back(std::move(outcome.text));
    } else if (!any_fits && lacks_less(*outcome.lacks, shortage)) {
      const config::TrainOptions& changed = outcome.remedy.options;
      not_enough.push_back(fmt::format("{} with {}", outcome.remedy.what,
                                       budgets_that_fit(changed, make_workload(config, changed),
                                                        budgets, *outcome.lacks, budgets_for)));
    }
  }
  if (any_fits) return advice;
  const RemedyFamily parts = layers_in_parts(config, options);
  if (shortage.tier == Tier::device && !parts.remedies.empty()) {
    Outcome outcome = search.one(parts);
    if (outcome.fits()) {
      advice.push_back(std::move(outcome.text));
      return advice;
    }
  }
  std::vector<std::string> pairs = search.pairs(options, shortage.tier);
  std::ranges::move(pairs.empty() ? not_enough : pairs, std::back_inserter(advice));
  return advice;
}

}  // namespace spillway::engine
