// GradientCopies: gradients on their way from a device to the host, a few copies at a time. One
// thread.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "offload/memory.hpp"
#include "runtime/engine/embedded/plan/gradient_landing.hpp"

namespace spillway::engine {

/// A gradient, or a part of one.
struct GradientCopy {
  std::uint32_t parameter = 0;
  std::uint64_t first = 0;  ///< of the gradient's bytes
  bool ends = false;        ///< it is the last part
  std::span<std::byte> target{};
  std::chrono::nanoseconds duration{};  ///< of one that has landed, to how often it was asked about
};

class GradientCopies {
 public:
  /// Allocates the memory in which copies land; `landing`: its size, from `landing_bytes`.
  /// `backend`, which is shared with others, outlives this.
  GradientCopies(offload::DeviceBackend& backend, Bytes landing);

  [[nodiscard]] bool has_room() const { return begun_ - landed_ < kLandings; }
  [[nodiscard]] bool empty() const { return begun_ == landed_; }
  /// Returns where the next copy lands, unless that is where the gradient waits for the update.
  [[nodiscard]] std::span<std::byte> landing() const;
  /// Makes later copies wait for the work behind which `event` was recorded.
  void order_behind(offload::Event& event) { stream_->wait(event); }
  /// Begins a copy; there must be room. `source` is as long as the copy's target.
  void begin(const GradientCopy& copy, offload::DeviceSpan<const std::byte> source);
  /// Returns the oldest copy if it is over, and forgets it; its landing is free with the next call
  /// of `begin`. Throws what it, or what it was ordered behind, has failed with.
  [[nodiscard]] std::optional<GradientCopy> take_landed();

 private:
  using Clock = std::chrono::steady_clock;
  struct InFlight {
    GradientCopy copy;
    std::unique_ptr<offload::Event> begun, over;
    Clock::time_point waited;  ///< it had not begun then
  };

  offload::PinnedMemory landing_;
  std::unique_ptr<offload::Stream> stream_;
  std::array<InFlight, kLandings> ring_;
  std::uint64_t begun_ = 0;
  std::uint64_t landed_ = 0;
  Clock::time_point last_landed_;
};

}  // namespace spillway::engine
