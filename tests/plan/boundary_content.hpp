// What the places of boundaries hold that leave the device, told in list order.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <utility>

#include "runtime/plan/step_plan.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::plan {

/// A boundary: whose, of which pass. `pass` 0: nothing.
struct TensorOf {
  std::uint32_t block = 0;
  std::uint32_t micro_batch = 0;
  std::uint32_t pass = 0;  ///< round + 1
  bool gradient = false;
  auto operator<=>(const TensorOf&) const = default;
};

class BoundaryContent {
 public:
  explicit BoundaryContent(const Workload& workload) : workload_(workload) {}

  TensorOf& slot(std::uint32_t slot) { return slots_[slot]; }

  /// False if the op finds another boundary than the one it is to move.
  bool move(const Op& op) {
    const TensorOf wanted{op.block, op.micro_batch, op.round + 1, op.of_gradient};
    TensorOf& there = on_host(op);
    if (op.kind == OpKind::save_activation) return carry(slots_[op.boundary_slot], there, wanted);
    if (op.kind == OpKind::load_activation) return carry(there, slots_[op.boundary_slot], wanted);
    TensorOf& disk = on_disk_[{op.block, op.micro_batch}];
    if (op.kind == OpKind::spill_activation) return carry(there, disk, wanted);
    return carry(disk, there, wanted);
  }

 private:
  static bool carry(const TensorOf& from, TensorOf& to, const TensorOf& wanted) {
    to = from;
    return from == wanted;
  }

  TensorOf& on_host(const Op& op) {
    if (op.slot != kNoSlot) return staging_[op.slot];
    const bool last = op.block + 2 == workload_.blocks.size();
    if (op.of_gradient || last) return parked_[op.micro_batch];
    return on_host_[{op.block, op.micro_batch}];
  }

  using Place = std::pair<std::uint32_t, std::uint32_t>;
  const Workload& workload_;
  std::map<std::uint32_t, TensorOf> slots_, staging_, parked_;
  std::map<Place, TensorOf> on_host_, on_disk_;
};

}  // namespace spillway::plan
