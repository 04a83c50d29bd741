// TicketChains: one operation and then another that begins when it is over. Control thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/base/ticket.hpp"

namespace spillway::engine {

/// `Next` starts the second operation: callable, returns its `Ticket`, allocates nothing.
template <class Next>
class TicketChains final : public TicketSource {
 public:
  /// Takes room for as many chains at once; the caller numbers them.
  explicit TicketChains(std::size_t chains) : chains_(chains) {}

  [[nodiscard]] Ticket start(std::uint32_t slot, Ticket first, Next next) {
    Chain& chain = chains_[slot];
    SPILLWAY_ASSERT(!chain.waits && !chain.current.pending());
    chain = {.current = std::move(first), .next = next, .waits = true};
    return {*this, slot};
  }

  [[nodiscard]] bool ready(std::uint32_t slot) override {
    Chain& chain = chains_[slot];
    if (chain.failure || !chain.current.ready()) return static_cast<bool>(chain.failure);
    if (!chain.waits) return true;
    try {
      advance(chain);
    } catch (...) {
      chain.failure = std::current_exception();  // for whoever finishes the ticket
      return true;
    }
    return chain.current.ready();
  }

  void finish(std::uint32_t slot) override {
    Chain chain = std::exchange(chains_[slot], {});
    if (chain.failure) std::rethrow_exception(chain.failure);
    if (chain.waits) advance(chain);
    chain.current.wait();
  }

 private:
  struct Chain {
    Ticket current{};  // the first operation, then the second
    Next next{};
    bool waits = false;  // the second has not begun
    std::exception_ptr failure{};
  };

  static void advance(Chain& chain) {
    chain.waits = false;
    chain.current.wait();
    chain.current = chain.next();
  }

  std::vector<Chain> chains_;
};

}  // namespace spillway::engine
