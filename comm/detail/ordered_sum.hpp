// The sum that all backends share: element by element over ranks 0, 1, 2, ... in fp32, rounded
// once. Pure; any thread.
#pragma once

#include <cstddef>
#include <span>

#include "comm/communicator.hpp"

namespace spillway::comm::detail {

/// Sets `result` to the sum of `addends`, which are in the order of ranks and as long as it. With
/// equal types it may be one of them: an element is written after its last addend is read.
void ordered_sum(std::span<const std::byte* const> addends, std::span<std::byte> result,
                 SumTypes types);

}  // namespace spillway::comm::detail
