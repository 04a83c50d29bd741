#include "comm/detail/card.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "runtime/base/error.hpp"

namespace spillway::comm::detail {
namespace {

[[noreturn]] void refuse(const std::string& difference) {
  throw Error(ErrorCode::invalid_argument, "the ranks do not run the same thing: " + difference);
}

/// Throws if `other`, of `rank`, differs from `first`, of rank 0.
template <class Value>
void compare(std::string_view what, const Value& first, std::size_t rank, const Value& other) {
  if (first == other) return;
  refuse(fmt::format("{} of rank {} is {}, of rank 0 {}", what, rank, other, first));
}

/// Takes the first line from `text`; "nothing" if there is none.
std::string_view take_line(std::string_view& text) {
  if (text.empty()) return "nothing";
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

}  // namespace

std::string_view Card::version_name() const {
  return {version, ::strnlen(version, sizeof version)};
}

Card card_of(const Identity& identity) {
  Card card{.settings_bytes = identity.settings.size(), .ranks = identity.ranks};
  std::ranges::copy(identity.version.substr(0, sizeof card.version - 1), card.version);
  return card;
}

void compare_cards(std::span<const Card> cards) {
  const Card& first = cards.front();
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    const Card& other = cards[rank];
    compare("the version", first.version_name(), rank, other.version_name());
    compare("the number of ranks", first.ranks, rank, other.ranks);
    if (other.settings_bytes > kMostSettings) {
      refuse(fmt::format("rank {} has {} bytes of settings, and the limit is {}", rank,
                         other.settings_bytes, kMostSettings));
    }
  }
  check(first.ranks == cards.size(), ErrorCode::invalid_argument,
        fmt::format("the group has {} ranks and was launched with {}", cards.size(), first.ranks));
}

void compare_settings(std::string_view first, Rank rank, std::string_view other) {
  if (first == other) return;
  std::string_view expected;
  std::string_view line;
  while (line == expected && !(first.empty() && other.empty())) {
    expected = take_line(first);
    line = take_line(other);
  }
  refuse(fmt::format("rank {} has {}, rank 0 has {}", rank.value(), line, expected));
}

}  // namespace spillway::comm::detail
