#include "runtime/plan/search/moves.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "runtime/plan/predict/price.hpp"

namespace spillway::plan::detail {
namespace {

/// Prices the upgrade of blocks whose state is on the host and whose other data is streamed.
Upgrade priced(const PoolSizes& sizes, const PlacementRequest& request, PoolKind pool,
               std::uint32_t end, void (*apply)(BlockCut&)) {
  Placement before;
  before.order = request.order;
  before.format = request.format;
  before.blocks.resize(sizes.size());
  Placement after = before;
  Bytes device;
  for (std::uint32_t b = 0; b < end; ++b) {
    apply(after.blocks[b]);
    device += sizes.block(b).shares[static_cast<std::size_t>(pool)];
  }
  const LaneWork worse = work_of_blocks(sizes.workload(), before);
  const LaneWork better = work_of_blocks(sizes.workload(), after);
  const auto for_a_byte = [&](double spared) {
    if (device == Bytes{}) return std::numeric_limits<double>::infinity();
    return spared / static_cast<double>(device.value());
  };
  return {.apply = apply,
          .end = end,
          .flops_spared = for_a_byte(worse.flops - better.flops),
          .link_spared = for_a_byte(worse.up + worse.down - better.up - better.down)};
}

}  // namespace

std::vector<Upgrade> upgrades(const PoolSizes& sizes, const PlacementRequest& request) {
  std::vector<Upgrade> list;
  const std::uint32_t blocks = sizes.size();
  if (!request.keep) {
    // The head has no saved activations: its two passes are one op.
    const std::uint32_t head = sizes.workload().head_is_embedding() ? 0 : 1;
    list.push_back(priced(sizes, request, PoolKind::saved_activations, blocks - head,
                          [](BlockCut& cut) { cut.saved = cut.saved.value_or(Tier::device); }));
  }
  if (!request.resident) {
    list.push_back(priced(sizes, request, PoolKind::resident_parameters, blocks,
                          [](BlockCut& cut) { cut.parameters = Tier::device; }));
  }
  if (!request.sums && device_may_sum(sizes.workload())) {
    list.push_back(priced(sizes, request, PoolKind::device_sums, blocks,
                          [](BlockCut& cut) { cut.gradients = Tier::device; }));
  }
  std::ranges::stable_sort(list, std::greater{}, [](const Upgrade& upgrade) {
    return std::tuple(upgrade.flops_spared, upgrade.link_spared);
  });
  return list;
}

void fill(Draft& draft, const Upgrade& upgrade) {
  const Draft before = draft;
  const auto upgraded = [&](std::uint32_t b) {
    BlockCut cut = draft.block(b);
    upgrade.apply(cut);
    return cut;
  };
  for (std::uint32_t b = 0; b < upgrade.end; ++b) draft.set(b, upgraded(b));
  // All of them together do without the slots or the scratch that only the others need.
  if (draft.fits(Tier::device)) return;
  draft = before;
  const auto alike = [&](std::uint32_t a, std::uint32_t b) {
    return draft.sizes().block(a) == draft.sizes().block(b) && draft.block(a) == draft.block(b);
  };
  std::optional<std::uint32_t> refused;  // the last block that did not fit
  for (std::uint32_t b = upgrade.end; b-- > 0;) {
    if (refused && alike(b, *refused)) continue;
    const BlockCut cut = draft.block(b);
    const BlockCut better = upgraded(b);
    refused.reset();
    if (better == cut) continue;
    draft.set(b, better);
    if (draft.fits(Tier::device)) continue;
    draft.set(b, cut);
    refused = b;
  }
}

void spread_saved(Draft& draft, const PlacementRequest& request) {
  const Workload& workload = draft.sizes().workload();
  const bool one_at_a_time = request.order == WorkOrder::micro_batch_major;
  draft.adjust([&](Placement& placement) {
    placement.saved_slots = 2 * (one_at_a_time ? 1 : workload.micro_batches);
  });
  double due = 0.5;
  for (std::uint32_t b = 0; b + 1 < draft.size(); ++b) {
    if (workload.blocks[b].saved_bytes == Bytes{}) continue;
    due += request.offload_share;
    if (due < 1) continue;
    due -= 1;
    move(draft, b, &BlockCut::saved, Tier::host);
  }
}

void offload_saved(Draft& draft, Tier tier) {
  if (draft.fits(Tier::device)) return;
  draft.adjust([tier](Placement& placement) {
    placement.saved_slots = 2;
    if (tier == Tier::nvme) placement.saved_staging = 2;
  });
  for (std::uint32_t b = 0; b + 1 < draft.size(); ++b) {
    if (draft.sizes().workload().blocks[b].saved_bytes == Bytes{}) continue;
    move(draft, b, &BlockCut::saved, tier);
    if (draft.fits(Tier::device)) return;
  }
}

void spill_state(Draft& draft) {
  if (draft.fits(Tier::host)) return;
  draft.adjust([](Placement& placement) { placement.state_slots = Placement().state_slots; });
  for (std::uint32_t b = draft.size(); b-- > 0 && !draft.fits(Tier::host);) {
    move(draft, b, &BlockCut::state, Tier::nvme);
  }
}

void stage_boundaries(Placement& placement) {
  placement.boundary_staging = placement.boundary_slots;
}

void spill_outputs(Draft& draft, std::uint32_t end) {
  const Workload& workload = draft.sizes().workload();
  for (std::uint32_t layer = 0; layer < end && !draft.fits(Tier::host); ++layer) {
    if (!workload.output_waits(layer)) continue;  // the disk spares it nothing
    const auto [first, last] = workload.blocks_of(layer);
    for (std::uint32_t b = first; b < last; ++b) move(draft, b, &BlockCut::output, Tier::nvme);
    draft.adjust(stage_boundaries);
  }
}

}  // namespace spillway::plan::detail
