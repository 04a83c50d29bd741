// Reduction: what a rank gives to the replicas of its stage of a block's gradient of a round, and
// what it gets: its shard of their sum or, where gradients add up in a fixed order, its shard of
// each, which it adds up itself. What has no shards is whole.
#pragma once

#include <cstdint>

#include "runtime/base/units.hpp"
#include "runtime/plan/step_plan.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

struct Reduction {
  OpKind kind{};                ///< of the exchange, which a rank alone does not make
  ElementCount given;           ///< elements of the gradient
  ElementCount shard;           ///< elements of each gradient that comes
  std::uint32_t gradients = 1;  ///< that come, one behind the other

  [[nodiscard]] ElementCount got() const { return ElementCount{shard.value() * gradients}; }
  /// Whether what comes takes the place of what was given.
  [[nodiscard]] bool in_place() const { return kind == OpKind::all_reduce; }
};

/// Returns the reduction of a gradient, or of a buffer that has room for one, of so many elements.
[[nodiscard]] inline Reduction reduction_of(const Workload& workload, ElementCount gradient) {
  const bool sharded = workload.shards() > 1;
  const bool summed = workload.replicas.sums == SumOrder::fast;
  Reduction reduction{.given = gradient,
                      .shard = ElementCount{gradient.value() / workload.shards()},
                      .gradients = workload.gradients_of_round()};
  if (summed) {
    reduction.kind = sharded ? OpKind::reduce_scatter : OpKind::all_reduce;
  } else {
    reduction.kind = sharded ? OpKind::all_to_all : OpKind::all_gather;
  }
  return reduction;
}

}  // namespace spillway::plan
