#include "runtime/plan/step/builder/step_draft.hpp"

#include <algorithm>
#include <numeric>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/saved_activations.hpp"

namespace spillway::plan {
namespace {

void check_placement(const Workload& workload, const Placement& placement) {
  SPILLWAY_ASSERT(placement.blocks.size() == workload.blocks.size());
  SPILLWAY_ASSERT(placement.state_slots >= 1);
  if (workload.external) {
    SPILLWAY_ASSERT(!placement.any_state(Tier::device));
    SPILLWAY_ASSERT(!workload.streams_external || !any_streamed(workload, placement) ||
                    placement.parameter_slots > 0);
    for (std::uint32_t block = 0; block < workload.blocks.size(); ++block) {
      const bool streamed = workload.streams_external && !placement.blocks[block].resident();
      SPILLWAY_ASSERT(streamed || workload.blocks[block].frozen_bytes == Bytes{});
      SPILLWAY_ASSERT(placement.blocks[block].parameters != Tier::nvme ||
                      placement.frozen_staging > 0);
    }
    return;
  }
  SPILLWAY_ASSERT(workload.blocks.size() >= 2 && placement.gradient_slots >= 1);
  SPILLWAY_ASSERT(!any_streamed(workload, placement) ||
                  placement.parameter_slots >= least_parameter_slots(workload, placement));
  for (const BlockCut& block : placement.blocks) {
    SPILLWAY_ASSERT(is_admissible(workload, block));
  }
  SPILLWAY_ASSERT(placement.speculative_blocks == 0 || may_speculate(workload, placement));
  const bool uses_slots = placement.boundary_slots > 0;
  SPILLWAY_ASSERT(!workload.operator_tiles || placement.blocks[0].resident());
  // A list leaves no slot to the next one.
  SPILLWAY_ASSERT(!uses_slots || !workload.stale.stays_full());
  // An op may hold two boundaries: what it reads and what it writes.
  SPILLWAY_ASSERT(!uses_slots || device_boundary_slots(workload, placement) >= 2);
  SPILLWAY_ASSERT(uses_slots ||
                  layers_with(workload, placement, Tier::device) == workload.head_layer());
  SPILLWAY_ASSERT(placement.boundary_staging > 0 ||
                  layers_with(workload, placement, Tier::nvme) == 0);
  // One to compute in or read from, and one that is copied meanwhile.
  SPILLWAY_ASSERT(placement.saved_slots >= 2 ||
                  offloaded_saved_activations(workload, placement) == Bytes{});
  SPILLWAY_ASSERT(placement.saved_staging > 0 || !placement.any_saved(Tier::nvme));
}

}  // namespace

StepDraft::StepDraft(const Workload& workload_of_step, const Placement& placement_of_step,
                     const WhichList& which_of_step)
    : workload(workload_of_step), which(which_of_step), pools(workload_of_step) {
  restart(placement_of_step);
}

void StepDraft::restart(const Placement& placement_of_step) {
  placement = placement_of_step;
  check_placement(workload, placement);
  SPILLWAY_ASSERT(which.place.tensor_index() < workload.tensor.count);
  ops.clear();
  pools.open(placement);
  tiles = make_tiles(workload, placement.tile_parameters, /*replica=*/0);
  first_tile.assign(workload.blocks.size() + 1, 0);
  for (const Tile& tile : tiles) ++first_tile[tile.block + 1];
  std::partial_sum(first_tile.begin(), first_tile.end(), first_tile.begin());
  round = 0;
  trains = false;
}

OpDraft OpWriter::draft(OpKind kind, Lane lane, std::uint32_t block, std::uint32_t m) {
  OpDraft draft(kind, lane, block);
  draft.op.micro_batch = m;
  return draft;
}

OpDraft OpWriter::draft_of_tile(OpKind kind, Lane lane, std::uint32_t tile) const {
  OpDraft draft(kind, lane, step_.tiles[tile].block);
  draft.op.tile = tile;
  return draft;
}

void OpWriter::append_group(OpKind kind, std::uint32_t block, std::uint32_t m, Bytes bytes,
                            const Access& from, const Access& to) {
  OpDraft op = draft(kind, Lane::net, block, m);
  op.op.group = RankGroup::tensor;
  op.op.copied.what = to.value.kind;
  op.op.bytes = bytes;
  op.read(from.buffer, from.value);
  op.write(to.buffer, to.value);
  append(op);
}

Value OpWriter::saved(std::uint32_t layer, std::uint32_t m) const {
  const std::uint32_t first = workload_.first_block(layer);
  std::uint32_t part = last_part(layer);
  while (workload_.operator_tiles && recomputes(layer) &&
         !workload_.blocks[first + part].feeds_backward) {
    --part;
  }
  return made_by(ValueKind::saved, layer, part, m);
}

}  // namespace spillway::plan
