#include "comm/handshake.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/detail/card.hpp"
#include "runtime/base/units.hpp"

namespace spillway::comm {

void handshake(Communicator& communicator, const Identity& mine) {
  using detail::Card;
  const Card card = detail::card_of(mine);
  std::vector<Card> cards(communicator.ranks());
  communicator
      .all_gather(std::as_bytes(std::span{&card, 1}), std::as_writable_bytes(std::span{cards}))
      .wait();
  detail::compare_cards(cards);
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
    detail::compare_settings(settings_of(0), Rank{rank}, settings_of(rank));
  }
}

}  // namespace spillway::comm
