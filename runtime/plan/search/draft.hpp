// Draft: a placement under change, which knows at any time what it needs of each tier; and the
// ways to spread boundaries that the choice of a placement goes through.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/plan/placement/memory_sums.hpp"
#include "runtime/plan/search/choose.hpp"

namespace spillway::plan::detail {

/// Borrows the sizes and the budgets.
class Draft {
 public:
  Draft(const PoolSizes& sizes, const Budgets& budgets, Placement placement)
      : budgets_(&budgets), placement_(std::move(placement)), sums_(sizes, placement_) {}

  [[nodiscard]] const Placement& placement() const { return placement_; }
  [[nodiscard]] const BlockCut& block(std::uint32_t b) const { return placement_.blocks[b]; }
  [[nodiscard]] const PoolSizes& sizes() const { return sums_.sizes(); }
  [[nodiscard]] std::uint32_t size() const {
    return static_cast<std::uint32_t>(placement_.blocks.size());
  }
  /// Changes what belongs to no single block, by `change(placement)`.
  template <class Change>
  void adjust(const Change& change) {
    change(placement_);
  }
  /// Replaces a block's cut by `cut`.
  void set(std::uint32_t b, const BlockCut& cut) {
    if (cut == placement_.blocks[b]) return;
    sums_.remove(b, placement_.blocks[b]);
    placement_.blocks[b] = cut;
    sums_.add(b, cut);
  }
  [[nodiscard]] Bytes needed(Tier tier) const { return memory_total(placement_, sums_, tier); }
  [[nodiscard]] Bytes budget(Tier tier) const {
    return tier == Tier::device ? budgets_->device
           : tier == Tier::host ? budgets_->host
                                : budgets_->nvme;
  }
  [[nodiscard]] bool fits(Tier tier) const {
    // The blocks' shares alone are often too much, and are known.
    return sums_.share_of(tier) <= budget(tier) && needed(tier) <= budget(tier);
  }

 private:
  const Budgets* budgets_;
  Placement placement_;
  MemorySums sums_;
};

/// How boundaries are spread, before everything else is.
struct BoundaryPlan {
  std::size_t off_device = 0;  ///< layers, from the first, whose activations leave the device
  std::uint32_t slots = 0;
};

/// Ways to spread boundaries, in order of preference. Each but `on_device` needs no more of the
/// device than the one before it, and no less of the other tiers but for staging.
class BoundaryPlans {
 public:
  /// Lists the ways. `spill`: activations may go to the disk. `shrink`: slots may be given up.
  BoundaryPlans(const Workload& workload, const PlacementRequest& request, bool spill, bool shrink)
      : slots_(2 * (prefetch_of(request, workload) + 1)) {
    const bool wants_device = request.activations.value_or(Tier::device) == Tier::device;
    on_device_ = !spill && wants_device ? 1 : 0;
    if (on_device_ == 1 && request.activations) return;
    const std::uint32_t head = workload.head_layer();
    for (std::uint32_t end = request.activations ? head : 1; end <= head; ++end) {
      if (request.activations || workload.has_output(end - 1)) ends_.push_back(end);
    }
    if (shrink) fewer_slots_ = slots_ - 1;  // one, beside those that pass from block to block
  }

  /// Returns 1 if plan 0 leaves all boundaries on the device, else 0.
  [[nodiscard]] std::size_t on_device() const { return on_device_; }
  [[nodiscard]] std::size_t size() const { return first_with_fewer_slots() + fewer_slots_; }
  [[nodiscard]] std::size_t first_with_fewer_slots() const { return on_device_ + ends_.size(); }
  [[nodiscard]] BoundaryPlan operator[](std::size_t i) const {
    if (i < on_device_) return {};
    i -= on_device_;
    if (i < ends_.size()) return {.off_device = ends_[i], .slots = slots_};
    const auto fewer = static_cast<std::uint32_t>(i - ends_.size()) + 1;
    return {.off_device = ends_.back(), .slots = slots_ - fewer};
  }

 private:
  std::uint32_t slots_;
  std::size_t on_device_ = 0;
  std::vector<std::uint32_t> ends_;  ///< of the layers off the device, in plans that differ in it
  std::size_t fewer_slots_ = 0;      ///< plans that differ in the number of slots
};

}  // namespace spillway::plan::detail
