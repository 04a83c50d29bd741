#include "tests/plan/plain_choice.hpp"

#include <algorithm>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/boundaries.hpp"

namespace spillway::plan {
namespace {

/// How boundaries are spread, before everything else is.
struct BoundaryPlan {
  std::size_t off_device = 0;  ///< blocks, from the first, whose activations leave the device
  std::uint32_t slots = 0;
};

class PlainChooser {
 public:
  PlainChooser(const Workload& workload, const Budgets& budgets, const PlacementRequest& request)
      : workload_(workload),
        budgets_(budgets),
        request_(request),
        prefetch_(std::min(request.prefetch.value_or(1),
                           static_cast<std::uint32_t>(workload.blocks.size()))) {}

  /// The first way to spread boundaries with which the rest fits.
  std::variant<Placement, Shortage> choose() {
    std::optional<Shortage> least;
    for (const bool spill : {false, true}) {
      if (spill != (request_.activations == Tier::nvme) && request_.activations) continue;
      for (const bool shrink : {false, true}) {
        for (const BoundaryPlan& plan : boundary_plans(spill, shrink)) {
          boundaries_ = plan;
          spill_boundaries_ = spill;
          shrink_ = shrink;
          std::variant<Placement, Shortage> choice = choose_rest();
          if (std::holds_alternative<Placement>(choice)) return choice;
          const Shortage& shortage = std::get<Shortage>(choice);
          if (!least || nearer(shortage, *least)) least = shortage;
        }
      }
    }
    return *least;
  }

 private:
  /// Whether less is missing than for `other`.
  [[nodiscard]] static bool nearer(const Shortage& shortage, const Shortage& other) {
    if (shortage.tier != other.tier) return shortage.tier > other.tier;
    return shortage.needed < other.needed;
  }

  /// In order of preference.
  [[nodiscard]] std::vector<BoundaryPlan> boundary_plans(bool spill, bool shrink) const {
    std::vector<BoundaryPlan> plans;
    const std::size_t head = workload_.head_layer();
    const std::uint32_t slots = 2 * (prefetch_ + 1);
    if (!spill && request_.activations.value_or(Tier::device) == Tier::device) {
      plans.push_back({});
      if (request_.activations) return plans;
    }
    for (std::size_t b = request_.activations ? head : 1; b <= head; ++b) {
      plans.push_back({.off_device = b, .slots = slots});
    }
    for (std::uint32_t fewer = slots; shrink && fewer-- > 1;) {
      plans.push_back({.off_device = head, .slots = fewer});
    }
    return plans;
  }

  std::variant<Placement, Shortage> choose_rest() {
    if (request_.state.value_or(Tier::device) == Tier::device && request_.resident != false) {
      Placement everything = uniform(true, Tier::device, request_.keep.value_or(true));
      if (fits(everything, Tier::device)) return finished_with_boundaries(everything);
      if (request_.state == Tier::device) {
        everything = uniform(true, Tier::device, request_.keep == true);
        if (request_.offload_share > 0) spread_internals(everything);
        offload_internals(everything);
        fill_device(everything);
        return finished_with_boundaries(everything);
      }
    }
    Placement placement = uniform(request_.resident.value_or(false),
                                  request_.state.value_or(Tier::host), request_.keep == true);
    if (request_.offload_share > 0) spread_internals(placement);
    if (shrink_) shrink_slots(placement);
    offload_internals(placement);
    if (!request_.state) spill_state(placement);
    if (spill_boundaries_ && !request_.activations) spill_activations(placement);
    fill_device(placement);
    return finished(placement);
  }

  std::variant<Placement, Shortage> finished_with_boundaries(Placement placement) const {
    if (spill_boundaries_ && !request_.activations) spill_activations(placement);
    return finished(std::move(placement));
  }

  /// A tied head needs its own parameters and those of block 0 at once.
  [[nodiscard]] std::uint32_t least_parameter_slots(const Placement& placement) const {
    const bool pair = workload_.tied_head && !placement.blocks.front().resident() &&
                      !placement.blocks.back().resident();
    return pair ? 2 : 1;
  }

  [[nodiscard]] Placement uniform(bool resident, Tier state, bool keep) const {
    Placement placement;
    placement.order = request_.order;
    placement.format = request_.format;
    placement.commits = request_.commits;
    // The same tiles, and no staging buffer larger than the largest of them.
    placement.tile_parameters = std::min(request_.tile_parameters, largest_block(workload_));
    const auto blocks = static_cast<std::uint32_t>(workload_.blocks.size());
    BlockCut cut{.state = state};
    if (resident) cut.parameters = Tier::device;
    if (keep) cut.saved = Tier::device;
    if (request_.sums == true && workload_.rounds > 1) cut.gradients = Tier::device;
    if (state == Tier::device) cut.gradients = Tier::device;
    placement.blocks.assign(blocks, cut);
    if (workload_.tiled) placement.blocks.front().parameters = Tier::device;  // every op reads them
    placement.parameter_slots = std::max(prefetch_ + 1, least_parameter_slots(placement));
    if (request_.order == WorkOrder::micro_batch_major) {
      placement.gradient_slots = blocks;
    } else if (state == Tier::device) {
      placement.gradient_slots = 1;  // no download that a second one could hide
    }
    if (state == Tier::host) placement.state_slots = 1;  // nothing of a step is staged
    const bool on_disk = request_.activations == Tier::nvme;
    for (std::uint32_t b = workload_.tiled ? 1 : 0; b < blocks; ++b) {
      if (workload_.layer_of(b) >= boundaries_.off_device) continue;
      placement.blocks[b].output = on_disk ? Tier::nvme : Tier::host;
    }
    placement.boundary_slots = boundaries_.slots;
    if (on_disk) stage_boundaries(placement);
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
      (head ? placement.blocks.back() : placement.blocks.front()).parameters = Tier::device;
      placement.parameter_slots = 1;
    }
  }

  /// The link has the time of the blocks between two of them to carry what one saves.
  void spread_internals(Placement& placement) const {
    const bool one_at_a_time = request_.order == WorkOrder::micro_batch_major;
    placement.saved_slots = 2 * (one_at_a_time ? 1 : workload_.micro_batches);
    double due = 0.5;
    for (std::uint32_t b = 0; b + 1 < placement.blocks.size(); ++b) {
      if (workload_.blocks[b].saved_bytes == Bytes{}) continue;
      due += request_.offload_share;
      if (due < 1) continue;
      due -= 1;
      placement.blocks[b].saved = Tier::host;
    }
  }

  /// The earliest blocks' internal activations wait longest for their backward.
  void offload_internals(Placement& placement) const {
    if (!request_.offload || fits(placement, Tier::device)) return;
    placement.saved_slots = 2;
    if (request_.offload_to == Tier::nvme) placement.saved_staging = 2;
    for (std::uint32_t b = 0; b + 1 < placement.blocks.size(); ++b) {
      if (workload_.blocks[b].saved_bytes == Bytes{}) continue;
      placement.blocks[b].saved = request_.offload_to;
      if (fits(placement, Tier::device)) return;
    }
  }

  void spill_state(Placement& placement) const {
    if (fits(placement, Tier::host)) return;
    placement.state_slots = Placement().state_slots;
    for (std::size_t b = placement.blocks.size(); b-- > 0 && !fits(placement, Tier::host);) {
      placement.blocks[b].state = Tier::nvme;
    }
  }

  void stage_boundaries(Placement& placement) const {
    if (layers_with(workload_, placement, Tier::nvme) > 0) {
      placement.boundary_staging = placement.boundary_slots;
    }
  }

  /// The last block's output goes to the head alone: the disk spares it nothing.
  void spill_activations(Placement& placement) const {
    const std::size_t end = std::min<std::size_t>(boundaries_.off_device, workload_.layers() - 2);
    for (std::uint32_t layer = 0; layer < end && !fits(placement, Tier::host); ++layer) {
      for (std::uint32_t b = workload_.tiled ? 1 : 0; b < placement.blocks.size(); ++b) {
        if (workload_.layer_of(b) == layer) placement.blocks[b].output = Tier::nvme;
      }
      stage_boundaries(placement);
    }
  }

  /// Gives up read-ahead of state, then the second landing place of gradients, where the host is
  /// too small for them.
  void shrink_host_slots(Placement& placement) const {
    while (!fits(placement, Tier::host) && placement.state_slots > 1) --placement.state_slots;
    while (!fits(placement, Tier::host) && placement.boundary_staging > 1) {
      --placement.boundary_staging;
    }
    if (!fits(placement, Tier::host) && placement.saved_staging > 1) --placement.saved_staging;
    if (!fits(placement, Tier::host) && request_.order == WorkOrder::layer_major) {
      placement.gradient_slots = 1;
    }
  }

  void fill_device(Placement& placement) const {
    if (!fits(placement, Tier::device)) return;
    const auto fill = [&](const auto& upgrade, std::size_t end) {
      const std::vector<BlockCut> before = placement.blocks;
      for (std::size_t b = 0; b < end; ++b) upgrade(placement.blocks[b]);
      // All of them together do without the slots or the scratch that only the others need.
      if (fits(placement, Tier::device)) return;
      placement.blocks = before;
      for (std::size_t b = end; b-- > 0;) {
        upgrade(placement.blocks[b]);
        if (!fits(placement, Tier::device)) placement.blocks[b] = before[b];
      }
    };
    const auto keep = [](BlockCut& cut) { cut.saved = cut.saved.value_or(Tier::device); };
    const auto stay = [](BlockCut& cut) { cut.parameters = Tier::device; };
    const auto sum = [](BlockCut& cut) { cut.gradients = Tier::device; };
    // The head has no saved activations: its two passes are one op.
    const std::size_t head = workload_.tiled && workload_.tied_head ? 0 : 1;
    if (!request_.keep) fill(keep, placement.blocks.size() - head);
    if (!request_.resident) fill(stay, placement.blocks.size());
    if (!request_.sums && workload_.rounds > 1 && !placement.any_state(Tier::device)) {
      fill(sum, placement.blocks.size());
    }
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
  const PlacementRequest request_;
  const std::uint32_t prefetch_;
  BoundaryPlan boundaries_;
  bool spill_boundaries_ = false;
  bool shrink_ = false;
};

}  // namespace

std::variant<Placement, Shortage> plain_choice(const Workload& workload, const Budgets& budgets,
                                               const PlacementRequest& request) {
  return PlainChooser(workload, budgets, request).choose();
}

}  // namespace spillway::plan
