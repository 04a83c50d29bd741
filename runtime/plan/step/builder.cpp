#include "runtime/plan/step/builder.hpp"

#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/internals.hpp"
#include "runtime/plan/placement/pools.hpp"

namespace spillway::plan {
namespace {

/// Returns what a copy carries: the first thing that it reads, to where it writes it.
Copy copied_by(std::span<const Access> accesses) {
  const Access& source = accesses.front();
  const Access& target = accesses.back();
  SPILLWAY_ASSERT(!source.writes && target.writes);
  ValueKind what = source.value.kind;
  if (what == ValueKind::total_gradient) what = ValueKind::gradient;
  if (what == ValueKind::activation_gradient) what = ValueKind::activation;
  return {.what = what, .from = tier_of(source.buffer.pool), .to = tier_of(target.buffer.pool)};
}

}  // namespace

Builder::Builder(const Workload& workload, const Placement& placement, bool records)
    : workload_(workload), records_(records), narrow_slots_(narrow_slots(workload)) {
  restart(placement);
}

void Builder::restart(const Placement& placement) {
  placement_ = placement;
  check_placement();
  plan_.begun = 0;
  plan_.ops.clear();
  plan_.accesses.clear();
  plan_.dependencies.clear();
  tracker_.clear();
  tiles_ = make_tiles(workload_, placement_.tile_parameters);
  open_tiles();
  accumulator_.assign(workload_.blocks.size(), {});
  passing_.assign(workload_.micro_batches, {});
  waiting_.clear();
  held_.assign(workload_.micro_batches, {});
  ahead_.assign(workload_.blocks.size(), {});
  secondary_.assign(workload_.blocks.size(), false);
  ahead_until_ = 1;  // the embedding's backward reads no parameters
  trains_ = false;
  staged_tile_.assign(placement_.state_slots, ~0U);
  staging_visits_ = record_visits_ = round_ = 0;
  open_pool(PoolKind::parameter_slots, placement_.parameter_slots);
  open_pool(PoolKind::frozen_slots, placement_.parameter_slots);
  open_pool(PoolKind::accumulators, placement_.gradient_slots);
  open_pool(PoolKind::rounded_gradients, placement_.gradient_slots);
  open_pool(PoolKind::gradient_shards, placement_.gradient_slots);
  open_pool(PoolKind::landing_gradients, placement_.gradient_slots);
  open_pool(PoolKind::parameter_shards, parameter_shard_slots(workload_, placement_));
  open_pool(PoolKind::boundary_slots, device_boundary_slots(workload_, placement_));
  open_pool(PoolKind::boundary_staging, placement_.boundary_staging);
  open_pool(PoolKind::kept_activation_slots, placement_.saved_slots);
  open_pool(PoolKind::kept_staging, placement_.saved_staging);
}

void Builder::check_placement() const {
  SPILLWAY_ASSERT(placement_.blocks.size() == workload_.blocks.size());
  SPILLWAY_ASSERT(placement_.state_slots >= 1);
  if (workload_.external) {
    SPILLWAY_ASSERT(!placement_.any_state(Tier::device));
    SPILLWAY_ASSERT(!workload_.streams_external || !any_streamed(workload_, placement_) ||
                    placement_.parameter_slots > 0);
    for (std::uint32_t block = 0; block < blocks(); ++block) {
      const bool streamed = workload_.streams_external && !placement_.blocks[block].resident();
      SPILLWAY_ASSERT(streamed || workload_.blocks[block].frozen_bytes == Bytes{});
    }
    return;
  }
  SPILLWAY_ASSERT(workload_.blocks.size() >= 2 && placement_.gradient_slots >= 1);
  SPILLWAY_ASSERT(!any_streamed(workload_, placement_) ||
                  placement_.parameter_slots >= least_parameter_slots(workload_, placement_));
  for (const BlockCut& block : placement_.blocks) {
    SPILLWAY_ASSERT(is_admissible(workload_, block));
  }
  const bool uses_slots = placement_.boundary_slots > 0;
  SPILLWAY_ASSERT(!workload_.tiled || placement_.blocks[0].resident());
  // A list leaves no slot to the next one.
  SPILLWAY_ASSERT(!uses_slots || !workload_.stage.stays_full());
  // An op may hold two boundaries: what it reads and what it writes.
  SPILLWAY_ASSERT(!uses_slots || device_boundary_slots(workload_, placement_) >= 2);
  SPILLWAY_ASSERT(uses_slots ||
                  layers_with(workload_, placement_, Tier::device) == workload_.head_layer());
  SPILLWAY_ASSERT(placement_.boundary_staging > 0 ||
                  layers_with(workload_, placement_, Tier::nvme) == 0);
  // One to compute in or read from, and one that is copied meanwhile.
  SPILLWAY_ASSERT(placement_.saved_slots >= 2 ||
                  offloaded_internals(workload_, placement_) == Bytes{});
  SPILLWAY_ASSERT(placement_.saved_staging > 0 || !placement_.any_saved(Tier::nvme));
}

void Builder::append(const OpDraft& draft) {
  Op op = draft.op;
  const std::span<const Access> accesses = draft.accesses();
  op.round = round_;
  if (op.kind == OpKind::copy) op.copied = copied_by(accesses);
  op.first_access = static_cast<std::uint32_t>(plan_.accesses.size());
  op.access_count = static_cast<std::uint32_t>(accesses.size());
  plan_.accesses.insert(plan_.accesses.end(), accesses.begin(), accesses.end());
  const std::span<const OpIndex> dependencies = tracker_.append(op, accesses);
  op.first_dependency = static_cast<std::uint32_t>(plan_.dependencies.size());
  op.dependency_count = static_cast<std::uint32_t>(dependencies.size());
  plan_.dependencies.insert(plan_.dependencies.end(), dependencies.begin(), dependencies.end());
  plan_.ops.push_back(op);
}

OpDraft Builder::draft(OpKind kind, Lane lane, std::uint32_t block, std::uint32_t m) const {
  OpDraft draft(kind, lane, block);
  draft.op.micro_batch = m;
  return draft;
}

void Builder::open_pool(PoolKind pool, std::uint32_t buffers) {
  auto& free = free_[static_cast<std::size_t>(pool)];
  free.clear();
  for (std::uint32_t i = 0; i < buffers; ++i) free.push_back(i);
}

Buffer Builder::take_free(PoolKind pool) {
  auto& free = free_[static_cast<std::size_t>(pool)];
  SPILLWAY_ASSERT(!free.empty());
  const Buffer buffer{pool, free.front()};
  free.pop_front();
  return buffer;
}

void Builder::give_back(const Buffer& buffer) {
  switch (buffer.pool) {
    case PoolKind::accumulators:
    case PoolKind::rounded_gradients:
    case PoolKind::landing_gradients:
      if (buffer == of_vectors(buffer.pool)) return;
      [[fallthrough]];
    case PoolKind::gradient_shards:
    case PoolKind::parameter_slots:
    case PoolKind::parameter_shards:
    case PoolKind::frozen_slots:
    case PoolKind::boundary_slots:
    case PoolKind::boundary_staging:
    case PoolKind::kept_activation_slots:
    case PoolKind::kept_staging:
      free_[static_cast<std::size_t>(buffer.pool)].push_back(buffer.first);
      return;
    default: return;
  }
}

/// Uploads what this rank has of a block's parameters.
void Builder::upload_parameters(std::uint32_t block, const Buffer& target, Needed needed) {
  OpDraft upload = draft(OpKind::copy, Lane::h2d, block);
  upload.op.if_pending = needed == Needed::after_update;
  upload.op.bytes = shard_bytes(block);
  if (age() > 0 && needed == Needed::always) {
    upload.read(stash_of(PoolKind::host_stash, block, workload_.stage.version_of(round_)),
                parameters(block));
    upload.write(target, parameters(block));
  } else {
    upload.read(tiles_of(PoolKind::host_parameters, block), shard_of(block));
    upload.write(target, shard_of(block));
  }
  append(upload);
}

/// Returns where the block's parameters are on the device; uploads or gathers them if they are
/// streamed.
Buffer Builder::bring_parameters(std::uint32_t block) {
  if (ahead_[block]) return *std::exchange(ahead_[block], std::nullopt);
  if (workload_.gathers()) return gather_for_pass(block);
  if (placement_.blocks[block].resident()) {
    if (workload_.shares_updates()) return {PoolKind::whole_parameters, block};
    if (age() > 0) {
      return stash_of(PoolKind::stashed_parameters, block, workload_.stage.version_of(round_));
    }
    return tiles_of(PoolKind::resident_parameters, block);
  }
  const Buffer slot = take_free(PoolKind::parameter_slots);
  upload_parameters(block, slot, Needed::always);
  return slot;
}

void Builder::read_vectors(OpDraft& draft) const {
  if (!workload_.tiled) return;
  draft.read(tiles_of(PoolKind::resident_parameters, 0), parameters(0));
}

void Builder::visit_forward(std::uint32_t block, MicroBatches range, bool train, bool again) {
  if (workload_.sums_passes()) return visit_forward_of_group(block, range, train);
  const std::uint32_t layer = workload_.layer_of(block);
  const std::uint32_t part = block - workload_.first_block(layer);
  const bool begins = part == 0;
  const bool ends = part == last_part(layer);
  const Buffer weights = bring_parameters(block);
  if (block == 0 && lends_first()) lend_embedding(weights);
  const bool leaves = train && internals_leave(workload_, placement_, block);
  // Tiles of a layer meet in what it saves, whether that is kept or not.
  const bool saves = workload_.tiled ? layer > 0 : train && placement_.blocks[block].saved;
  for (std::uint32_t m = range.first; m < range.last; ++m) {
    OpDraft forward = draft(OpKind::forward, Lane::gpu, block, m);
    forward.op.flops = workload_.blocks[block].forward_flops;
    forward.read(weights, parameters(block));
    read_vectors(forward);
    Buffer input;
    if (layer == 0) {
      bring_tokens(forward, !begins);
    } else {
      if (again && begins) held_[m] = returning_activation(layer - 1, m);
      input = again ? held_[m] : passing_activation(layer - 1, m);
      forward.read(input, activation(layer - 1, m));
    }
    if (!again) {
      if (begins) held_[m] = place_for_output(layer, m);
      forward.write(held_[m], made_by(ValueKind::activation, layer, part, m));
    }
    const Buffer kept =
        leaves ? take_free(PoolKind::kept_activation_slots) : kept_activations(block, m);
    if (saves) {
      if (!begins) forward.read(kept, made_by(ValueKind::saved, layer, part - 1, m));
      forward.write(kept, made_by(ValueKind::saved, layer, part, m));
    }
    forward.write({PoolKind::workspace}, {});
    append(forward);
    if (layer > 0 && ends && !again) give_back(input);
    if (leaves) {
      take_away(internals(block, m), kept);
      give_back(kept);
    }
    if (ends && !again) pass_activation(layer, m, held_[m], train);
  }
  give_back(weights);
}

void Builder::forward_layer(std::uint32_t layer, MicroBatches range, bool train,
                            bool update_first) {
  const std::uint32_t end = workload_.first_block(layer + 1);
  for (std::uint32_t block = workload_.first_block(layer); block < end; ++block) {
    if (update_first) update_block(block);
    visit_forward(block, range, train);
  }
}

/// Appends one pass forward and backward. `update_first`: the pending update of each block stands
/// just ahead of the block's forward, so that on every lane it delays nothing that an earlier block
/// needs.
void Builder::pass(MicroBatches range, bool update_first) {
  const std::uint32_t last = workload_.head_layer();
  if (workload_.tiled && update_first) update_block(0);
  for (std::uint32_t layer = 0; layer < last; ++layer) {
    forward_layer(layer, range, /*train=*/true, update_first);
  }
  if (update_first) {
    for (std::uint32_t block = workload_.first_block(last); block < blocks(); ++block) {
      update_block(block);
    }
    append_step_commit();
  }
  visit_head(range, /*train=*/true);
  for (std::uint32_t layer = last; layer-- > 0;) backward_layer(layer, range);
  if (workload_.tiled && range.last == workload_.micro_batches) finish_gradient(0);
}

void Builder::round(std::uint32_t round) {
  round_ = round;
  if (placement_.order == WorkOrder::layer_major) {
    pass({0, workload_.micro_batches}, round == 0);
    return;
  }
  SPILLWAY_ASSERT(placement_.gradient_slots == workload_.blocks.size());
  for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
    pass({m, m + 1}, round == 0 && m == 0);
  }
}

void Builder::training() {
  if (workload_.external) return external_training();
  if (!workload_.stage.chunks.empty()) return staged_training();
  trains_ = true;
  for (std::uint32_t r = 0; r < workload_.rounds; ++r) round(r);
  read_ahead();
}

void Builder::evaluation() {
  if (!workload_.stage.chunks.empty()) return staged_evaluation();
  // In the order of training, whose pools it uses.
  const bool whole = placement_.order == WorkOrder::layer_major;
  const std::uint32_t at_once = whole ? workload_.micro_batches : 1;
  for (std::uint32_t m = 0; m < workload_.micro_batches; m += at_once) {
    const MicroBatches range{m, m + at_once};
    for (std::uint32_t layer = 0; layer < workload_.head_layer(); ++layer) {
      forward_layer(layer, range, /*train=*/false, /*update_first=*/false);
    }
    visit_head(range, /*train=*/false);
  }
}

}  // namespace spillway::plan
