#include "runtime/plan/choose.hpp"

#include <algorithm>

namespace spillway::plan {
namespace {

class Chooser {
 public:
  Chooser(const Workload& workload, const Budgets& budgets, const PlacementRequest& request)
      : workload_(workload), budgets_(budgets), request_(request) {}

  std::variant<Placement, Shortage> choose() {
    if (device_only_is_allowed()) {
      Placement everything = uniform(true, Tier::device, request_.keep.value_or(true));
      if (fits(everything, Tier::device)) return checked(everything);
      if (request_.state == Tier::device) {
        everything = uniform(true, Tier::device, request_.keep.value_or(false));
        return checked(everything);
      }
    }
    Placement placement = uniform(request_.resident.value_or(false),
                                  request_.state.value_or(Tier::host), request_.keep == true);
    shrink_slots(placement);
    if (!request_.state) spill_state(placement);
    fill_device(placement);
    return checked(placement);
  }

 private:
  [[nodiscard]] bool device_only_is_allowed() const {
    return request_.state.value_or(Tier::device) == Tier::device && request_.resident != false;
  }

  [[nodiscard]] std::uint32_t least_parameter_slots() const { return workload_.tied_head ? 2 : 1; }

  [[nodiscard]] Placement uniform(bool resident, Tier state, bool keep) const {
    Placement placement;
    placement.order = request_.order;
    placement.format = request_.format;
    placement.tile_parameters = request_.tile_parameters;
    placement.parameter_slots = std::max(request_.prefetch + 1, least_parameter_slots());
    const auto blocks = static_cast<std::uint32_t>(workload_.blocks.size());
    if (request_.order == WorkOrder::micro_batch_major) placement.gradient_slots = blocks;
    placement.blocks.assign(blocks, {.resident = resident, .state = state, .keep = keep});
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

  /// Gives up prefetch, then the second gradient slot, where the device is too small for them.
  void shrink_slots(Placement& placement) const {
    while (!fits(placement, Tier::device) &&
           placement.parameter_slots > least_parameter_slots()) {
      --placement.parameter_slots;
    }
    if (!fits(placement, Tier::device) && request_.order == WorkOrder::layer_major) {
      placement.gradient_slots = 1;
    }
  }

  void spill_state(Placement& placement) const {
    for (std::size_t b = placement.blocks.size(); b-- > 0 && !fits(placement, Tier::host);) {
      placement.blocks[b].state = Tier::nvme;
    }
  }

  void fill_device(Placement& placement) const {
    const auto try_each = [&](bool BlockPlacement::* property, std::size_t end) {
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

  [[nodiscard]] std::variant<Placement, Shortage> checked(const Placement& placement) const {
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

std::variant<Placement, Shortage> choose_placement(const Workload& workload,
                                                   const Budgets& budgets,
                                                   const PlacementRequest& request) {
  return Chooser(workload, budgets, request).choose();
}

}  // namespace spillway::plan
