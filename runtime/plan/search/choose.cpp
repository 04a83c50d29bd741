#include "runtime/plan/search/choose.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/search/moves.hpp"

namespace spillway::plan {
namespace {

using detail::BoundaryPlan;
using detail::BoundaryPlans;
using detail::Draft;

/// Blocks of placements that are tried one after the other where none is known to be the first that
/// fits: all of a small workload's.
constexpr std::size_t kBlocksTried = 1024;

PlacementRequest possible(PlacementRequest request, const Workload& workload) {
  // A rank that does not gather parameters for each pass has them all; the host updates its shard.
  if (workload.replicas.count > 1 && !workload.gathers()) request.resident = true;
  return request;
}

/// Returns the first of [first, end) for which `holds` is true; it is true for all behind that one.
template <class Holds>
std::size_t first_where(std::size_t first, std::size_t end, const Holds& holds) {
  while (first < end) {
    const std::size_t middle = first + (end - first) / 2;
    if (holds(middle)) {
      end = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

class Chooser {
 public:
  Chooser(const Workload& workload, const Budgets& budgets, const PlacementRequest& request)
      : workload_(workload),
        budgets_(budgets),
        request_(possible(request, workload)),
        tile_parameters_(std::min(request.tile_parameters, largest_block(workload))),
        sizes_(workload, request.format, tile_parameters_, request.commits),
        upgrades_(detail::upgrades(sizes_, request_)) {}

  /// The first way to spread boundaries with which the rest fits.
  CountedChoice choose() {
    check_request();
    for (const bool spill : {false, true}) {
      if (spill != (request_.activations == Tier::nvme) && request_.activations) continue;
      for (const bool shrink : {false, true}) {
        spill_boundaries_ = spill;
        shrink_ = shrink;
        if (try_plans(BoundaryPlans(workload_, request_, spill, shrink))) {
          return {std::move(*found_), tried_};
        }
      }
    }
    return {*least_, tried_};
  }

 private:
  void check_request() const {
    check(request_.state != Tier::device || request_.resident != false, ErrorCode::invalid_argument,
          "state on the device and streamed parameters exclude each other: the device updates "
          "parameters where they live; ask for state on the host, or for resident parameters");
    check(
        workload_.replicas.count == 1 || request_.state != Tier::device, ErrorCode::not_supported,
        "state on the device with more than one rank is not supported; ask for state on the host");
    check(!workload_.operator_tiles || workload_.grid().ranks() == 1, ErrorCode::not_supported,
          "layers in tiles with more than one rank are not supported; plan whole layers");
    check(!workload_.operator_tiles || !request_.offload, ErrorCode::not_supported,
          "saved activations of layers in tiles stay on the device; ask for that, or plan whole "
          "layers");
    check(workload_.replicas.count == 1 || request_.order == WorkOrder::layer_major,
          ErrorCode::not_supported,
          "one micro-batch after the other with more than one rank is not supported; ask for "
          "layer-major order");
    SPILLWAY_ASSERT(!request_.offload || request_.keep == true);
    SPILLWAY_ASSERT(request_.offload_share == 0 || (!request_.keep && !workload_.operator_tiles));
  }

  /// Whether one of the plans fits. Device fit is monotone in the index: first the minimum fits,
  /// later everything does. Within each of these two stretches, the other tiers need more from plan
  /// to plan. If the start of a stretch does not fit, nothing in it does, except where a few blocks
  /// more or less on the device decide. So the first few of each stretch are tried.
  bool try_plans(const BoundaryPlans& plans) {
    const std::size_t end = plans.size();
    if (plans.on_device() == 1 && try_plan(plans[0])) return true;
    if (end == plans.on_device()) return false;
    // A host that is too small may give up a gradient slot, and the device has no use for it then.
    const std::size_t first = first_where(plans.on_device(), end, [&](std::size_t i) {
      boundaries_ = plans[i];
      Draft draft = base().draft;
      give_up_gradient_slot(draft);
      return draft.fits(Tier::device);
    });
    if (first == end) return try_plan(plans[end - 1]);
    const std::size_t with_slots = first_where(first, end, [&](std::size_t i) {
      boundaries_ = plans[i];
      return base().draft.fits(Tier::device);
    });
    const std::size_t everything = first_where(with_slots, end, [&](std::size_t i) {
      boundaries_ = plans[i];
      return base().everything;
    });
    const std::size_t few = std::max<std::size_t>(4, kBlocksTried / workload_.blocks.size());
    std::set<std::size_t> worth_it{end - 1};
    for (const std::size_t start :
         {first, with_slots, everything, std::max(first, plans.first_with_fewer_slots())}) {
      for (std::size_t i = start; i < std::min(end, start + few); ++i) worth_it.insert(i);
    }
    return std::ranges::any_of(worth_it, [&](std::size_t i) { return try_plan(plans[i]); });
  }

  bool try_plan(const BoundaryPlan& plan) {
    ++tried_;
    boundaries_ = plan;
    Draft draft = complete();
    for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      if (draft.fits(tier)) continue;
      const Shortage shortage{tier, draft.needed(tier), draft.budget(tier)};
      if (!least_ || nearer(shortage, *least_)) least_ = shortage;
      return false;
    }
    found_ = draft.placement();
    return true;
  }

  /// Whether less is missing than for `other`.
  [[nodiscard]] static bool nearer(const Shortage& shortage, const Shortage& other) {
    if (shortage.tier != other.tier) return shortage.tier > other.tier;
    return shortage.needed < other.needed;
  }

  /// What the device must hold, before the rest of it is filled.
  struct Base {
    Draft draft;
    bool everything = false;  ///< it holds everything
  };

  [[nodiscard]] Base base() const {
    const bool device_updates =
        workload_.replicas.count == 1 && (request_.device_updates || request_.state);
    if (device_updates && request_.state.value_or(Tier::device) == Tier::device &&
        request_.resident != false) {
      Draft everything = uniform(/*resident=*/true, Tier::device, request_.keep.value_or(true));
      if (everything.fits(Tier::device)) return {std::move(everything), true};
      if (request_.state == Tier::device) {
        everything = uniform(/*resident=*/true, Tier::device, request_.keep == true);
        if (request_.offload_share > 0) detail::spread_saved(everything, request_);
        if (request_.offload) detail::offload_saved(everything, request_.offload_to);
        return {std::move(everything)};
      }
    }
    Draft draft = uniform(request_.resident.value_or(false), request_.state.value_or(Tier::host),
                          request_.keep == true);
    if (request_.offload_share > 0) detail::spread_saved(draft, request_);
    if (shrink_) shrink_slots(draft);
    if (request_.offload) detail::offload_saved(draft, request_.offload_to);
    return {std::move(draft)};
  }

  [[nodiscard]] Draft complete() const {
    auto [draft, everything] = base();
    if (!everything && !request_.state) detail::spill_state(draft);
    if (spill_boundaries_ && !request_.activations) detail::spill_outputs(draft, off_device());
    if (!everything) fill_device(draft);
    shrink_host_slots(draft);
    return std::move(draft);
  }

  [[nodiscard]] Draft uniform(bool resident, Tier state, bool keep) const {
    Placement placement;
    placement.order = request_.order;
    placement.format = request_.format;
    placement.commits = request_.commits;
    // The same tiles, and no staging buffer larger than the largest of them.
    placement.tile_parameters = tile_parameters_;
    const auto blocks = static_cast<std::uint32_t>(workload_.blocks.size());
    const bool waits =
        state == Tier::device || (request_.sums == true && device_may_sum(workload_));
    placement.blocks.assign(blocks, {.parameters = resident ? Tier::device : Tier::host,
                                     .gradients = waits ? Tier::device : Tier::host,
                                     .state = state,
                                     .saved = keep ? std::optional(Tier::device) : std::nullopt});
    if (workload_.operator_tiles)
      placement.blocks.front().parameters = Tier::device;  // every op reads them
    placement.parameter_slots =
        std::max(prefetch_of(request_, workload_) + 1, least_parameter_slots(workload_, placement));
    if (request_.order == WorkOrder::micro_batch_major) {
      placement.gradient_slots = blocks;
    } else if (state == Tier::device) {
      placement.gradient_slots = 1;  // no download that a second one could hide
    }
    if (state == Tier::host) placement.state_slots = 1;  // nothing of a step is staged
    const bool on_disk = request_.activations == Tier::nvme;
    const std::uint32_t end = workload_.first_block(off_device());
    for (std::uint32_t b = workload_.first_block(0); b < end; ++b) {
      placement.blocks[b].output = on_disk ? Tier::nvme : Tier::host;
    }
    placement.boundary_slots = boundaries_.slots;
    if (on_disk && layers_with(workload_, placement, Tier::nvme) > 0)
      detail::stage_boundaries(placement);
    return {sizes_, budgets_, std::move(placement)};
  }

  /// Gives up what only hides time where the device is too small for it: prefetch, the second
  /// gradient slot, the second parameter slot of a tied head.
  void shrink_slots(Draft& draft) const {
    const auto too_large = [&] { return !draft.fits(Tier::device); };
    const std::uint32_t least = least_parameter_slots(workload_, draft.placement());
    while (too_large() && draft.placement().parameter_slots > least) {
      draft.adjust([](Placement& placement) { --placement.parameter_slots; });
    }
    if (too_large()) give_up_gradient_slot(draft);
    if (too_large() && least == 2 && !request_.resident) {
      // A resident home for the smaller of the pair costs no more than a slot for the larger.
      const auto size = [](const BlockShape& block) { return block.padded_parameters; };
      const bool head = size(workload_.blocks.back()) <= size(workload_.blocks.front());
      detail::move(draft, head ? draft.size() - 1 : 0, &BlockCut::parameters, Tier::device);
      draft.adjust([](Placement& placement) { placement.parameter_slots = 1; });
    }
  }

  void give_up_gradient_slot(Draft& draft) const {
    if (request_.order == WorkOrder::micro_batch_major) return;
    draft.adjust([](Placement& placement) { placement.gradient_slots = 1; });
  }

  [[nodiscard]] std::uint32_t off_device() const {
    return static_cast<std::uint32_t>(boundaries_.off_device);
  }

  /// Gives up read-ahead of state, then the second landing place of gradients, where the host is
  /// too small for them.
  void shrink_host_slots(Draft& draft) const {
    while (!draft.fits(Tier::host) && draft.placement().state_slots > 1) {
      draft.adjust([](Placement& placement) { --placement.state_slots; });
    }
    while (!draft.fits(Tier::host) && draft.placement().boundary_staging > 1) {
      draft.adjust([](Placement& placement) { --placement.boundary_staging; });
    }
    if (!draft.fits(Tier::host) && draft.placement().saved_staging > 1) {
      draft.adjust([](Placement& placement) { --placement.saved_staging; });
    }
    if (!draft.fits(Tier::host)) give_up_gradient_slot(draft);
  }

  void fill_device(Draft& draft) const {
    if (!draft.fits(Tier::device)) return;
    for (const detail::Upgrade& upgrade : upgrades_) detail::fill(draft, upgrade);
  }

  const Workload& workload_;
  const Budgets& budgets_;
  const PlacementRequest request_;
  const ElementCount tile_parameters_;
  const PoolSizes sizes_;
  const std::vector<detail::Upgrade> upgrades_;  // by price
  BoundaryPlan boundaries_;
  bool spill_boundaries_ = false;
  bool shrink_ = false;
  std::optional<Placement> found_;
  std::optional<Shortage> least_;
  std::size_t tried_ = 0;
};

}  // namespace

CountedChoice count_choice(const Workload& workload, const Budgets& budgets,
                           const PlacementRequest& request) {
  return Chooser(workload, budgets, request).choose();
}

std::variant<Placement, Shortage> choose_placement(const Workload& workload, const Budgets& budgets,
                                                   const PlacementRequest& request) {
  return count_choice(workload, budgets, request).choice;
}

}  // namespace spillway::plan
