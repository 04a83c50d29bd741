// How gradients on a device come to the host: how many copies at once, of how many bytes. Pure.
#pragma once

#include <cstddef>

#include "runtime/base/units.hpp"
#include "runtime/engine/embedded/plan/layout.hpp"

namespace spillway::engine {

/// Most copies that are under way at once.
inline constexpr std::size_t kLandings = 4;

/// Returns the pinned memory in which gradients land that are added to others on the host; those
/// that are alone in their step land where they wait for the update.
[[nodiscard]] Bytes landing_bytes(const EmbeddedOptions& options, const EmbeddedLayout& layout);

/// Number of copies that the gradients of a step take; where a step may have any number of them,
/// for one gradient of each parameter.
[[nodiscard]] std::size_t copies_of_step(const EmbeddedOptions& options,
                                         const EmbeddedLayout& layout);

}  // namespace spillway::engine
