// SingleTransport: that of a group of one rank, which has nobody to send to.
#pragma once

#include "comm/detail/transport.hpp"

namespace spillway::comm::detail {

class SingleTransport final : public Transport {
 public:
  SingleTransport() : Transport(Rank{0}, 1) {}

  void send(Rank, Source) override { SPILLWAY_ASSERT(ranks() > 1); }
  void receive(Rank, Target) override { SPILLWAY_ASSERT(ranks() > 1); }
  [[nodiscard]] std::optional<Rank> wait(std::uint64_t, std::chrono::milliseconds) override {
    return std::nullopt;
  }
  [[nodiscard]] std::optional<Rank> wait_for_any(std::span<const Rank>,
                                                 std::chrono::milliseconds) override {
    return std::nullopt;
  }
  void tell_at_work() override {}
  void abandon(ErrorCode, std::string_view) noexcept override {}
};

}  // namespace spillway::comm::detail
