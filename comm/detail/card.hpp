// Card: the first message of the handshake, in which a rank tells every other one what it runs, and
// the comparison of all of them. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "comm/handshake.hpp"
#include "runtime/base/units.hpp"

namespace spillway::comm::detail {

/// Sent as it lies in memory; its layout stays the same from version to version.
struct Card {
  char version[32] = {};
  std::uint64_t settings_bytes = 0;  ///< length of the message that follows
  std::uint32_t ranks = 0;
  std::uint32_t unused = 0;

  [[nodiscard]] std::string_view version_name() const;
};
static_assert(sizeof(Card) == 48);

/// Limit on the settings of a rank: a damaged card makes nobody fill its memory.
constexpr std::uint64_t kMostSettings = 1 << 20;

[[nodiscard]] Card card_of(const Identity& identity);

/// Throws `Error{invalid_argument}` that names the first rank whose card differs from that of rank
/// 0, or asks for more than kMostSettings. `cards`: one of each rank, not empty.
void compare_cards(std::span<const Card> cards);

/// Throws `Error{invalid_argument}` with the first line in which `other`, the settings of `rank`,
/// differs from `first`, those of rank 0.
void compare_settings(std::string_view first, Rank rank, std::string_view other);

}  // namespace spillway::comm::detail
