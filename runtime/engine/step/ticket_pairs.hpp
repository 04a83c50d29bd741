// TicketPairs: two operations as one, over when both are. Control thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/base/ticket.hpp"

namespace spillway::engine {

class TicketPairs final : public TicketSource {
 public:
  /// Takes room for as many pairs at once; the caller numbers them.
  explicit TicketPairs(std::size_t pairs) : pairs_(pairs) {}

  [[nodiscard]] Ticket join(std::uint32_t slot, Ticket first, Ticket second) {
    SPILLWAY_ASSERT(!pairs_[slot].first.pending() && !pairs_[slot].second.pending());
    pairs_[slot] = {std::move(first), std::move(second)};
    return {*this, slot};
  }

  [[nodiscard]] bool ready(std::uint32_t slot) override {
    // Both are asked: that makes both progress.
    const bool first = pairs_[slot].first.ready();
    return pairs_[slot].second.ready() && first;
  }

  void finish(std::uint32_t slot) override {
    // If the first fails, going out of scope waits for the second.
    std::pair<Ticket, Ticket> both = std::exchange(pairs_[slot], {});
    both.first.wait();
    both.second.wait();
  }

 private:
  std::vector<std::pair<Ticket, Ticket>> pairs_;
};

}  // namespace spillway::engine
