// The orders in which the streams of a device may run what they hold.
#pragma once

#include <cstdint>
#include <functional>

namespace spillway::engine {

/// Runs `body` once on a GPU; on the emulated CUDA once for each of a few orders of its streams,
/// the latest and the earliest among them. The streams are idle meanwhile.
void for_each_stream_order(const std::function<void(std::uint64_t)>& body);

}  // namespace spillway::engine
