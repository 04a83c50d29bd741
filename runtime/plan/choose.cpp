#include "runtime/plan/choose.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::plan {
namespace {

class Chooser {
 public:
  Chooser(const Workload& workload, const Budgets& budgets, const PlacementRequest& request)
      : workload_(workload), budgets_(budgets), request_(request) {}

  std::variant<Placement, Shortage> choose() {
    check(request_.state != Tier::device || request_.resident != false, ErrorCode::invalid_argument,
          "state on the device and streamed parameters exclude each other: the device updates "
          "parameters where they live; ask for state on the host, or for resident parameters");
    if (request_.state.value_or(Tier::device) == Tier::device && request_.resident != false) {
      Placement everything = uniform(true, Tier::device, request_.keep.value_or(true));
      if (fits(everything, Tier::device)) return finished(everything);
      if (request_.state == Tier::device) {
        everything = uniform(true, Tier::device, request_.keep == true);
        fill_device(everything);
        return finished(everything);
      }
    }
    Placement placement = uniform(request_.resident.value_or(false),
                                  request_.state.value_or(Tier::host), request_.keep == true);
    shrink_slots(placement);
    if (!request_.state) spill_state(placement);
    fill_device(placement);
    return finished(placement);
  }

 private:
  /// A tied head needs its own parameters and those of block 0 at once.
  [[nodiscard]] std::uint32_t least_parameter_slots(const Placement& placement) const {
    const bool pair = workload_.tied_head && !placement.blocks.front().resident &&
                      !placement.blocks.back().resident;
    return pair ? 2 : 1;
  }

  [[nodiscard]] Placement uniform(bool resident, Tier state, bool keep) const {
    Placement placement;
    placement.order = request_.order;
    placement.format = request_.format;
    placement.commits = request_.commits;
    // The same tiles, and no staging buffer larger than the largest of them.
    placement.tile_parameters =
        std::min(request_.tile_parameters, gradient_slot_elements(workload_));
    const auto blocks = static_cast<std::uint32_t>(workload_.blocks.size());
    placement.blocks.assign(blocks, {.resident = resident, .state = state, .keep = keep});
    placement.parameter_slots = std::max(request_.prefetch + 1, least_parameter_slots(placement));
    if (request_.order == WorkOrder::micro_batch_major) {
      placement.gradient_slots = blocks;
    } else if (state == Tier::device) {
      placement.gradient_slots = 1;  // no download that a second one could hide
    }
    if (state == Tier::host) placement.state_slots = 1;  // nothing of a step is staged
    return placement;
  }

  [[nodiscard]] Bytes needed(const Placement& placement, Tier tier) const {
    return total(memory_items(workload_, placement), tier);
  }

  [[nodiscard]] Bytes budget(Tier tier) const {
    return tier == Tier::device ? budgets_.device
           : tier == Tier::host ? budgets_.host
                                : budgets_.nvme;
  }

  [[nodiscard]] bool fits(const Placement& placement, Tier tier) const {
    return needed(placement, tier) <= budget(tier);
  }

  /// Gives up what only hides time where the device is too small for it: prefetch, the second
  /// gradient slot, the second parameter slot of a tied head.
  void shrink_slots(Placement& placement) const {
    const auto too_large = [&] { return !fits(placement, Tier::device); };
    while (too_large() && placement.parameter_slots > least_parameter_slots(placement)) {
      --placement.parameter_slots;
    }
    if (too_large() && request_.order == WorkOrder::layer_major) placement.gradient_slots = 1;
    if (too_large() && least_parameter_slots(placement) == 2 && !request_.resident) {
      // A resident home for the smaller of the pair costs no more than a slot for the larger.
      const auto size = [](const BlockShape& block) { return block.padded_parameters; };
      const bool head = size(workload_.blocks.back()) <= size(workload_.blocks.front());
      (head ? placement.blocks.back() : placement.blocks.front()).resident = true;
      placement.parameter_slots = 1;
    }
  }

  void spill_state(Placement& placement) const {
    if (fits(placement, Tier::host)) return;
    placement.state_slots = Placement().state_slots;
    for (std::size_t b = placement.blocks.size(); b-- > 0 && !fits(placement, Tier::host);) {
      placement.blocks[b].state = Tier::nvme;
    }
  }

  /// Gives up read-ahead of state, then the second landing place of gradients, where the host is
  /// too small for them.
  void shrink_host_slots(Placement& placement) const {
    while (!fits(placement, Tier::host) && placement.state_slots > 1) --placement.state_slots;
    if (!fits(placement, Tier::host) && request_.order == WorkOrder::layer_major) {
      placement.gradient_slots = 1;
    }
  }

  void fill_device(Placement& placement) const {
    const auto try_each = [&](bool BlockPlacement::*property, std::size_t end) {
      for (std::size_t b = end; b-- > 0;) {
        const bool before = placement.blocks[b].*property;
        placement.blocks[b].*property = true;
        if (!fits(placement, Tier::device)) placement.blocks[b].*property = before;
      }
    };
    // The head has no saved activations: its two passes are one op.
    if (!request_.keep) try_each(&BlockPlacement::keep, placement.blocks.size() - 1);
    if (!request_.resident) try_each(&BlockPlacement::resident, placement.blocks.size());
  }

  [[nodiscard]] std::variant<Placement, Shortage> finished(Placement placement) const {
    shrink_host_slots(placement);
    for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      if (!fits(placement, tier)) return Shortage{tier, needed(placement, tier), budget(tier)};
    }
    return placement;
  }

  const Workload& workload_;
  const Budgets& budgets_;
  const PlacementRequest& request_;
};

}  // namespace

std::variant<Placement, Shortage> choose_placement(const Workload& workload, const Budgets& budgets,
                                                   const PlacementRequest& request) {
  return Chooser(workload, budgets, request).choose();
}

}  // namespace spillway::plan
