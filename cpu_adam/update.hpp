// The update of a range that several parameter groups share, from one gradient or the sum of
// several. Any thread may call it; it touches only the range that it is given and allocates
// nothing.
#pragma once

#include <cstdint>
#include <span>

#include "cpu_adam/adam.hpp"

namespace spillway::cpu_adam {

/// Parameters of a block from the end of the previous group up to `end`, an index in the block.
struct ParameterGroup {
  std::uint64_t end;
  UpdateScalars scalars;
  bool skips = false;  ///< its parameters and their state stay as they are; on the host alone
};

/// Updates `range`, whose `index` says where in its block it starts, each part with its group's
/// scalars; a boundary may lie anywhere, also inside a quantization block of format int8 (the
/// groups of such a block must then have one optimizer). `groups`: ends ascending, the last not
/// before the end of the range. With `more_gradients`, each like `range.gradient`, the gradient is
/// the sum of all in fp32, in order, formed a leaf at a time in the cache: the bits are those of
/// `accumulate` followed by the update with fp32 gradients.
void update(const Kernel& kernel, std::span<const ParameterGroup> groups, const UpdateRange& range,
            std::span<const void* const> more_gradients = {});

}  // namespace spillway::cpu_adam
