#include "runtime/engine/embedded/plan/gradient_landing.hpp"

#include <algorithm>

#include "runtime/engine/embedded/plan/embedded_plan.hpp"

namespace spillway::engine {
namespace {

/// The most that one copy brings where gradients are added: long beside the call that begins it.
constexpr Bytes kMostLanding{4u << 20};

}  // namespace

Bytes landing_bytes(const EmbeddedOptions& options, const EmbeddedLayout& layout) {
  if (options.device == config::DeviceKind::host || !sums_gradients(options)) return {};
  const ParameterRange& largest = std::ranges::max(layout.ranges, {}, &ParameterRange::count);
  const Bytes whole{largest.count * size_of(options.dtype)};
  return Bytes{std::min(whole, kMostLanding).value() * kLandings};
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

}  // namespace spillway::engine
