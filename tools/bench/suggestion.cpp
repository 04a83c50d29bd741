#include "tools/bench/suggestion.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

namespace spillway::bench {
namespace {

/// Typing mistakes between two words: the optimal string alignment distance.
std::size_t mistakes(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const std::size_t changed = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, changed});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
  constexpr std::size_t kLettersPerMistake = 3;
  std::optional<std::string> best;
  std::size_t fewest = std::max<std::size_t>(word.size() / kLettersPerMistake, 1) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = mistakes(word, candidate);
    if (distance >= fewest) continue;
    fewest = distance;
    best = candidate;
  }
  return best;
}

std::vector<std::string> nearest_first(std::string_view word,
                                       std::span<const std::string> candidates, std::size_t count) {
  std::string lower(word);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  std::vector<std::pair<std::size_t, std::string>> ranked;
  ranked.reserve(candidates.size());
  for (const std::string& candidate : candidates) {
    const bool whole = candidate.find(lower) != std::string::npos;
    ranked.emplace_back(whole ? 0 : mistakes(lower, candidate), candidate);
  }
  std::ranges::stable_sort(ranked, {}, &std::pair<std::size_t, std::string>::first);
  ranked.resize(std::min(count, ranked.size()));
  std::vector<std::string> names;
  names.reserve(ranked.size());
  for (auto& [distance, name] : ranked) names.push_back(std::move(name));
  return names;
}

}  // namespace spillway::bench
