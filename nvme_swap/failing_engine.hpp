// FailingEngine: an adaptor that spoils chosen operations of any engine. For tests.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "nvme_swap/io_engine.hpp"

namespace spillway::nvme_swap {

namespace detail {
class HeldResults;
}

enum class FaultAction : std::uint8_t {
  fail,     ///< not performed; the result is -error
  shorten,  ///< performed for `length` bytes only
  zero,     ///< not performed; the result is 0
  lose,     ///< not performed; the result claims success
  delay,    ///< performed; the result comes `delay` later
  reorder,  ///< performed after the operation that follows it, if one does while it waits
};

/// Spoils operations number `first` to `first + count - 1` of those that match, counted from 1.
struct Fault {
  FaultAction action = FaultAction::fail;
  std::optional<IoOperation> operation{};  ///< every kind if empty
  std::uint64_t first = 1;
  std::uint64_t count = 1;
  int error = 5;  ///< errno; EIO
  std::size_t length = 0;
  std::chrono::milliseconds delay{0};
};

/// Control thread only, as the engine inside.
class FailingEngine final : public IoEngine {
 public:
  FailingEngine(std::unique_ptr<IoEngine> inner, const EngineOptions& options);
  ~FailingEngine() override;
  FailingEngine(const FailingEngine&) = delete;
  FailingEngine& operator=(const FailingEngine&) = delete;

  /// Arms `fault`, counting operations from now on.
  void arm(const Fault& fault);
  void disarm();
  /// Number of operations taken since construction, of one kind or of all.
  [[nodiscard]] std::uint64_t taken(std::optional<IoOperation> operation = std::nullopt) const;
  /// Number of operations spoiled since construction.
  [[nodiscard]] std::uint64_t spoiled() const { return spoiled_; }

  [[nodiscard]] std::string_view name() const override;
  [[nodiscard]] EngineAbilities abilities() const override { return inner_->abilities(); }
  [[nodiscard]] std::string_view failure() const override { return inner_->failure(); }
  [[nodiscard]] std::size_t submit(std::span<const IoRequest> requests) override;
  [[nodiscard]] std::size_t poll(std::span<IoResult> results) override;
  void wait() override;

 private:
  struct Delayed {
    std::uint64_t tag;
    std::chrono::milliseconds delay;
  };

  [[nodiscard]] bool strikes(IoOperation operation) const;
  [[nodiscard]] bool submit_one(const IoRequest& request);
  [[nodiscard]] bool spoil(const IoRequest& request);
  void release_overtaken();
  void invent(std::uint64_t tag, std::int64_t result);
  void collect();

  std::unique_ptr<IoEngine> inner_;
  WakeSignal* wake_;
  const std::size_t depth_;
  std::optional<Fault> fault_;
  std::uint64_t matched_ = 0;  // since `arm`
  std::uint64_t spoiled_ = 0;
  std::array<std::uint64_t, 3> taken_{};
  std::size_t in_flight_ = 0;
  std::vector<IoRequest> overtaken_;  // kept back until another operation has gone in
  std::vector<Delayed> delayed_;      // still inside the engine
  std::vector<IoResult> invented_;    // to be polled now
  std::vector<IoResult> scratch_;
  std::unique_ptr<detail::HeldResults> held_;
};

}  // namespace spillway::nvme_swap
