// Traffic of ops: the bytes that the simulator divides by a measured rate. For ops that only pass
// over memory, bytes read plus bytes written, each array once; for collectives, what a rank sends.
// Pure.
#pragma once

#include <cstdint>

#include "runtime/plan/placement/placement.hpp"
#include "runtime/plan/step_plan.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// Bytes of the fused pass: fp32 28, split 26, bf16 18, int8 14.06 at 16-bit compute; `compute`
/// widens the gradient read and the parameter written.
[[nodiscard]] double update_traffic_per_parameter(StateFormat format, DType compute);

/// Bytes of the update of a tile. Checksums of state from the disk cost nothing: the pass sums what
/// it has in the cache.
[[nodiscard]] Bytes update_traffic(const Workload& workload, const Placement& placement,
                                   const Tile& tile);

/// Bytes of finishing a block's gradient of a round on the device: the second use of a tied block
/// added, the sums rounded, and, where the gradient waits on the device, the result put there.
[[nodiscard]] Bytes rounding_traffic(const Workload& workload, const Placement& placement,
                                     std::uint32_t block, std::uint32_t round);

/// Bytes of adding a landed gradient of a block to the sum of earlier rounds on the host.
[[nodiscard]] Bytes summing_traffic(const Workload& workload, std::uint32_t block,
                                    std::uint32_t round);

/// Bytes that this rank sends to make a block's parameters whole on every rank of its node, from a
/// node's copy.
[[nodiscard]] Bytes node_gather_traffic(const Workload& workload, std::uint32_t block);

/// Bytes that this rank sends to make a block's parameters whole on every rank.
[[nodiscard]] Bytes gather_traffic(const Workload& workload, std::uint32_t block);

/// Bytes that this rank sends of a block's gradient of a round: its part of a sum, or the parts
/// that the other ranks add up themselves.
[[nodiscard]] Bytes reduction_traffic(const Workload& workload, std::uint32_t block);

/// Bytes that the rank with that index in its tensor group sends where the group adds up `bytes` of
/// elements of `dtype`. In a ring of t ranks that is 2 (t - 1) / t of them, as even as elements
/// divide; nothing else in a plan depends on the index.
[[nodiscard]] Bytes tensor_sum_traffic(const TensorGroup& group, std::uint32_t tensor_index,
                                       Bytes bytes, DType dtype);

/// Bytes that such a rank sends where its group adds up what a pass has made. The whole sum goes to
/// every rank, or to each the sum for its own tokens.
[[nodiscard]] Bytes pass_sum_traffic(const Workload& workload, std::uint32_t tensor_index);
/// Bytes that this rank sends where a tensor group gathers the tokens of all its ranks.
[[nodiscard]] Bytes token_gather_traffic(const Workload& workload);

/// Bytes of the sum of squares of a tile's waiting gradient.
[[nodiscard]] Bytes norm_traffic(const Workload& workload, const Tile& tile);

}  // namespace spillway::plan
