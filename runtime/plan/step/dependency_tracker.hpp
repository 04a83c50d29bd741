// DependencyTracker: derives the dependencies of ops from what they read and write, op by op as a
// plan is built: read after write, write after read, write after write.
//
// A skipped op orders nothing, so dependencies are derived for each circumstance in which a plan
// may run, and an op gets those of all. What is ordered anyway is left out: by a lane that works
// in list order, or through another dependency.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/plan/step_plan.hpp"

namespace spillway::plan {

class DependencyTracker {
 public:
  /// Begins a new list in the memory of the last.
  void clear();
  /// Returns the ops that `op`, the next of the list, has to wait for, in list order. The span
  /// holds until the next call.
  [[nodiscard]] std::span<const OpIndex> append(const Op& op, std::span<const Access> accesses);

 private:
  /// An op that has used a buffer, and the circumstances in which no later op has overwritten it.
  struct Use {
    OpIndex op;
    Circumstances when;
    bool writes;
  };
  /// An op of each serial lane, plus 1; 0: none.
  using PerLane = std::array<OpIndex, kSerialLanes>;
  /// An op in one circumstance.
  struct Order {
    PerLane complete{};  ///< the last that is complete when the op starts
    PerLane seen_by{};   ///< for a disk op: the first op of each lane known to run after it
  };
  struct Placed {
    Lane lane;
    Circumstances when;
    std::uint32_t first;  ///< into dependencies_
    std::uint32_t count;
  };

  /// Buffers in a row that ops use together: what a block has by tile. They share a list of uses,
  /// which follow those that each has by itself.
  struct Group {
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::vector<Use> uses{};
  };
  struct PoolUses {
    std::vector<std::vector<Use>> own;    // by buffer, latest last
    std::vector<std::uint32_t> group_of;  // by buffer, plus 1; 0: none
    std::vector<Group> groups;
  };

  void use(OpIndex op, const Access& access);
  Group& group_of(PoolUses& pool, const Buffer& buffer);
  void part(PoolUses& pool, std::uint32_t buffer);
  [[nodiscard]] Circumstances meet(OpIndex op, bool writes, const std::vector<Use>& uses,
                                   Circumstances open);
  void note(const Use& use, std::vector<Use>& uses) const;
  void reduce(OpIndex op, std::size_t circumstance);
  void follow(OpIndex dependency, Order& order, std::size_t circumstance);
  void mark_seen(OpIndex op, OpIndex by, std::size_t circumstance);
  [[nodiscard]] bool is_complete(OpIndex op, const Order& order, std::size_t circumstance) const;
  [[nodiscard]] std::span<const OpIndex> dependencies_of(OpIndex op) const;
  [[nodiscard]] Order& order_of(OpIndex op, std::size_t circumstance) {
    return orders_[op * kCircumstances + circumstance];
  }
  [[nodiscard]] const Order& order_of(OpIndex op, std::size_t circumstance) const {
    return orders_[op * kCircumstances + circumstance];
  }

  std::array<PoolUses, kPoolCount> uses_;
  std::vector<Placed> ops_;
  std::vector<Order> orders_;  // by op and circumstance
  std::vector<OpIndex> dependencies_;
  std::array<PerLane, kCircumstances> started_{};  // the last, by circumstance
  std::vector<OpIndex> candidates_;                // of the op that is appended
  std::vector<bool> kept_;                         // by candidate
  std::vector<OpIndex> passed_;  // disk ops that are complete through a kept candidate
};

/// Returns lists that run one after the other as one list, in which an op waits only for those ops
/// of earlier lists that its buffers require.
[[nodiscard]] StepPlan in_a_row(std::span<const StepPlan> lists);

}  // namespace spillway::plan
