#include "comm/handshake.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/base/error.hpp"

namespace spillway::comm {
namespace {

/// Is sent as it lies in memory, and so keeps its layout from version to version.
struct Card {
  char version[32] = {};
  std::uint64_t configuration_hash = 0;
  std::uint32_t ranks = 0;
  std::uint32_t unused = 0;
};

/// Throws if `other`, of `rank`, differs from `first`, of rank 0.
template <class Value>
void compare(std::string_view what, const Value& first, std::uint32_t rank, const Value& other) {
  if (first == other) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the ranks do not run the same thing: {} of rank {} is {}, of rank 0 {}",
                          what, rank, other, first));
}

}  // namespace

void handshake(Communicator& communicator, const Identity& mine) {
  Card card{.configuration_hash = mine.configuration_hash, .ranks = mine.ranks};
  std::ranges::copy(mine.version.substr(0, sizeof card.version - 1), card.version);
  std::vector<Card> cards(communicator.ranks());
  communicator
      .all_gather(std::as_bytes(std::span{&card, 1}), std::as_writable_bytes(std::span{cards}))
      .wait();
  const Card& first = cards.front();
  for (std::uint32_t rank = 0; rank < communicator.ranks(); ++rank) {
    const Card& other = cards[rank];
    compare("the version", std::string_view(first.version), rank, std::string_view(other.version));
    compare("the hash of the configuration", first.configuration_hash, rank,
            other.configuration_hash);
    compare("the number of ranks", first.ranks, rank, other.ranks);
  }
  if (first.ranks == communicator.ranks()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the group has {} ranks and was launched with {}", communicator.ranks(),
                          first.ranks));
}

}  // namespace spillway::comm
