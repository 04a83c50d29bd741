#include "comm/handshake.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/error.hpp"

namespace spillway::comm {
namespace {

/// Is sent as it lies in memory, and so keeps its layout from version to version.
struct Card {
  char version[32] = {};
  std::uint64_t settings_bytes = 0;
  std::uint32_t ranks = 0;
  std::uint32_t unused = 0;
};

/// Bounds the settings of a rank: a damaged card makes nobody fill its memory.
constexpr std::uint64_t kMostSettings = 1 << 20;

std::string_view version_of(const Card& card) {
  return {card.version, ::strnlen(card.version, sizeof card.version)};
}

[[noreturn]] void refuse(const std::string& difference) {
  throw Error(ErrorCode::invalid_argument, "the ranks do not run the same thing: " + difference);
}

/// Throws if `other`, of `rank`, differs from `first`, of rank 0.
template <class Value>
void compare(std::string_view what, const Value& first, std::uint32_t rank, const Value& other) {
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

void compare_settings(std::string_view first, std::uint32_t rank, std::string_view other) {
  while (!first.empty() || !other.empty()) {
    const std::string_view expected = take_line(first);
    const std::string_view line = take_line(other);
    if (line == expected) continue;
    refuse(fmt::format("rank {} has {}, rank 0 has {}", rank, line, expected));
  }
}

}  // namespace

void handshake(Communicator& communicator, const Identity& mine) {
  Card card{.settings_bytes = mine.settings.size(), .ranks = mine.ranks};
  std::ranges::copy(mine.version.substr(0, sizeof card.version - 1), card.version);
  std::vector<Card> cards(communicator.ranks());
  communicator
      .all_gather(std::as_bytes(std::span{&card, 1}), std::as_writable_bytes(std::span{cards}))
      .wait();
  const Card& first = cards.front();
  for (std::uint32_t rank = 0; rank < communicator.ranks(); ++rank) {
    const Card& other = cards[rank];
    compare("the version", version_of(first), rank, version_of(other));
    compare("the number of ranks", first.ranks, rank, other.ranks);
    if (other.settings_bytes > kMostSettings) {
      refuse(fmt::format("rank {} has {} bytes of settings, and the limit is {}", rank,
                         other.settings_bytes, kMostSettings));
    }
  }
  check(first.ranks == communicator.ranks(), ErrorCode::invalid_argument,
        fmt::format("the group has {} ranks and was launched with {}", communicator.ranks(),
                    first.ranks));
  const std::uint64_t longest =
      std::ranges::max_element(cards, {}, &Card::settings_bytes)->settings_bytes;
  std::string padded(mine.settings);
  padded.resize(longest);
  std::string all(longest * communicator.ranks(), '\0');
  communicator.all_gather(std::as_bytes(std::span{padded}), std::as_writable_bytes(std::span{all}))
      .wait();
  const auto settings_of = [&](std::uint32_t rank) {
    return std::string_view(all).substr(rank * longest, cards[rank].settings_bytes);
  };
  for (std::uint32_t rank = 1; rank < communicator.ranks(); ++rank) {
    compare_settings(settings_of(0), rank, settings_of(rank));
  }
}

}  // namespace spillway::comm
