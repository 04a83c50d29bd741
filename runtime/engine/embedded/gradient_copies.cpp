#include "runtime/engine/embedded/gradient_copies.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/engine/embedded/embedded_plan.hpp"

namespace spillway::engine {
namespace {

/// The most that one copy brings where gradients are added: long beside the call that begins it.
constexpr Bytes kMostLanding{4u << 20};

}  // namespace

Bytes landing_bytes(const EmbeddedOptions& options, const EmbeddedLayout& layout) {
  if (options.device == config::DeviceKind::host || !sums_gradients(options)) return {};
  const ParameterRange& largest = std::ranges::max(layout.ranges, {}, &ParameterRange::count);
  const Bytes whole{largest.count * size_of(options.dtype)};
  return Bytes{std::min(whole, kMostLanding).value() * GradientCopies::kInFlight};
}

std::size_t copies_of_step(const EmbeddedOptions& options, const EmbeddedLayout& layout) {
  if (options.device == config::DeviceKind::host) return 0;
  const bool sums = sums_gradients(options);
  std::size_t copies = 0;
  for (const ParameterRange& range : layout.ranges) {
    const std::size_t bytes = range.count * size_of(options.dtype);
    copies += sums ? round_up(bytes, kMostLanding.value()) / kMostLanding.value() : 1;
  }
  return copies * passes_of_step(options);
}

GradientCopies::GradientCopies(offload::DeviceBackend& backend, Bytes landing)
    : stream_(backend.make_stream("gradients")) {
  allocate(landing_, backend, landing);
  for (InFlight& each : ring_) {
    each.begun = backend.make_event();
    each.over = backend.make_event();
  }
}

std::span<std::byte> GradientCopies::landing() const {
  const std::size_t each = landing_.size().value() / kInFlight;
  return landing_.host().subspan(begun_ % kInFlight * each, each);
}

void GradientCopies::begin(const GradientCopy& copy, offload::DeviceSpan<const std::byte> source) {
  SPILLWAY_ASSERT(has_room());
  InFlight& next = ring_[begun_++ % kInFlight];
  next.copy = copy;
  next.waited = Clock::now();
  stream_->record(*next.begun);
  stream_->download(copy.target, source);
  stream_->record(*next.over);
}

std::optional<GradientCopy> GradientCopies::take_landed() {
  if (empty()) return std::nullopt;
  InFlight& oldest = ring_[landed_ % kInFlight];
  const Clock::time_point now = Clock::now();
  if (!oldest.begun->done()) oldest.waited = now;
  if (!oldest.over->done()) return std::nullopt;
  ++landed_;
  oldest.copy.duration = now - std::max(oldest.waited, last_landed_);
  last_landed_ = now;
  return oldest.copy;
}

}  // namespace spillway::engine
