#include "runtime/engine/embedded/gradients/gradient_copies.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::engine {

GradientCopies::GradientCopies(offload::DeviceBackend& backend, Bytes landing)
    : stream_(backend.make_stream("gradients")) {
  allocate(landing_, backend, landing);
  for (InFlight& each : ring_) {
    each.begun = backend.make_event();
    each.over = backend.make_event();
  }
}

std::span<std::byte> GradientCopies::landing() const {
  const std::size_t each = landing_.size().value() / kLandings;
  return landing_.host().subspan(begun_ % kLandings * each, each);
}

void GradientCopies::begin(const GradientCopy& copy, offload::DeviceSpan<const std::byte> source) {
  SPILLWAY_ASSERT(has_room());
  InFlight& next = ring_[begun_++ % kLandings];
  next.copy = copy;
  next.waited = Clock::now();
  stream_->record(*next.begun);
  stream_->download(copy.target, source);
  stream_->record(*next.over);
}

std::optional<GradientCopy> GradientCopies::take_landed() {
  if (empty()) return std::nullopt;
  InFlight& oldest = ring_[landed_ % kLandings];
  const Clock::time_point now = Clock::now();
  if (!oldest.begun->done()) oldest.waited = now;
  if (!oldest.over->done()) return std::nullopt;
  ++landed_;
  oldest.copy.duration = now - std::max(oldest.waited, last_landed_);
  last_landed_ = now;
  return oldest.copy;
}

}  // namespace spillway::engine
