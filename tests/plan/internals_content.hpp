// What the places of kept activations hold that leave the device, told in list order.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "runtime/plan/step_plan.hpp"
#include "tests/plan/boundary_content.hpp"

namespace spillway::plan {

class InternalsContent {
 public:
  /// Forward fills the op's slot, or else the home of its own.
  void save(const Op& op) { place(op) = wanted(op); }
  /// Whether backward finds what forward saved in this pass.
  [[nodiscard]] bool finds(const Op& op) { return place(op) == wanted(op); }

  /// False if the op finds other activations than those that it is to move.
  bool move(const Op& op) {
    TensorOf& there = on_host_[{op.block, op.micro_batch}];
    const bool saves = op.kind == OpKind::save_internals;
    const TensorOf from = saves ? place(op) : there;
    (saves ? there : place(op)) = from;
    return from == wanted(op);
  }

 private:
  [[nodiscard]] static TensorOf wanted(const Op& op) {
    return {op.block, op.micro_batch, op.round + 1, false};
  }
  TensorOf& place(const Op& op) {
    return op.saved_slot == kNoSlot ? own_[{op.block, op.micro_batch}] : slots_[op.saved_slot];
  }

  using Place = std::pair<std::uint32_t, std::uint32_t>;
  std::map<std::uint32_t, TensorOf> slots_;
  std::map<Place, TensorOf> own_, on_host_;
};

}  // namespace spillway::plan
