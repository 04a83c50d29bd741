#include "runtime/plan/step/builder/activations.hpp"

#include "runtime/plan/placement/boundaries.hpp"
#include "runtime/plan/placement/pools.hpp"
#include "runtime/plan/placement/saved_activations.hpp"

namespace spillway::plan {

void Activations::restart() {
  passing_.assign(workload_.micro_batches, {});
  waiting_.clear();
}

Activations::Leaving Activations::leaving_boundary(std::uint32_t layer, std::uint32_t m) const {
  const Tier home = *boundary_home(workload_, placement_, layer);
  const bool disk = home == Tier::nvme;
  return {.value = boundary(layer, m),
          .block = workload_.first_block(layer),
          .bytes = workload_.boundary_bytes,
          .slots = PoolKind::boundary_slots,
          .staging = PoolKind::boundary_staging,
          .home = of_micro_batch(disk ? PoolKind::disk_boundaries : PoolKind::host_boundaries,
                                 layer, m)};
}

Activations::Leaving Activations::leaving_saved_activations(std::uint32_t block,
                                                            std::uint32_t m) const {
  const bool disk = placement_.blocks[block].saved == Tier::nvme;
  const PoolKind home = disk ? PoolKind::disk_saved_activations : PoolKind::host_saved_activations;
  return {.value = saved(workload_.layer_of(block), m),
          .block = block,
          .bytes = workload_.blocks[block].saved_bytes,
          .slots = PoolKind::saved_activation_slots,
          .staging = PoolKind::saved_activation_staging,
          .home = of_micro_batch(home, block, m)};
}

void Activations::append_copy(const Leaving& what, Lane lane, const Buffer& from,
                              const Buffer& to) {
  OpDraft copy = draft(OpKind::copy, lane, what.block, what.value.micro_batch);
  const bool disk = lane == Lane::nvme_read || lane == Lane::nvme_write;
  copy.op.bytes = disk ? in_pages(what.bytes) : what.bytes;
  copy.read(from, what.value);
  copy.write(to, what.value);
  append(copy);
}

void Activations::take_away(const Leaving& what, const Buffer& made) {
  const bool spills = tier_of(what.home.pool) == Tier::nvme;
  const Buffer host = spills ? take_free(what.staging) : what.home;
  append_copy(what, Lane::d2h, made, host);
  if (spills) append_copy(what, Lane::nvme_write, host, what.home);
  give_back(host);
}

Buffer Activations::bring_back(const Leaving& what) {
  const bool fetches = tier_of(what.home.pool) == Tier::nvme;
  const Buffer host = fetches ? take_free(what.staging) : what.home;
  if (fetches) append_copy(what, Lane::nvme_read, what.home, host);
  const Buffer device = take_free(what.slots);
  append_copy(what, Lane::h2d, host, device);
  give_back(host);
  return device;
}

Buffer Activations::passing_boundary(std::uint32_t layer, std::uint32_t m) const {
  const bool stays = boundary_home(workload_, placement_, layer) == Tier::device;
  return stays ? of_micro_batch(PoolKind::boundaries, layer, m) : passing_[m];
}

Buffer Activations::passing_gradient(std::uint32_t m) const {
  if (placement_.boundary_slots == 0) return {PoolKind::boundary_gradients, in_flight(m)};
  return passing_[m];
}

Buffer Activations::returning_boundary(std::uint32_t layer, std::uint32_t m) {
  if (boundary_home(workload_, placement_, layer) == Tier::device) {
    return of_micro_batch(PoolKind::boundaries, layer, m);
  }
  return bring_back(leaving_boundary(layer, m));
}

Buffer Activations::place_for_output(std::uint32_t layer, std::uint32_t m) {
  if (boundary_home(workload_, placement_, layer) == Tier::device) {
    return of_micro_batch(PoolKind::boundaries, layer, m);
  }
  return take_free(PoolKind::boundary_slots);
}

Buffer Activations::place_for_gradient(std::uint32_t m) {
  if (placement_.boundary_slots == 0) return {PoolKind::boundary_gradients, in_flight(m)};
  return take_free(PoolKind::boundary_slots);
}

void Activations::pass_boundary(std::uint32_t layer, std::uint32_t m, const Buffer& made,
                                bool train) {
  if (made.pool != PoolKind::boundary_slots) return;
  const bool returns = train && boundary_home(workload_, placement_, layer);
  if (returns) take_away(leaving_boundary(layer, m), made);
  passing_[m] = made;
}

void Activations::pass_gradient(std::uint32_t m, const Buffer& made) {
  if (made.pool == PoolKind::boundary_slots) passing_[m] = made;
}

Buffer Activations::saved_activations(std::uint32_t block, std::uint32_t m) const {
  const std::uint32_t first = workload_.first_block(workload_.layer_of(block));
  if (placement_.blocks[first].saved) return of_micro_batch(PoolKind::saved_activations, first, m);
  return {PoolKind::recomputation_scratch, workload_.operator_tiles ? m : 0};
}

Buffer Activations::returning_saved_activations(std::uint32_t block, std::uint32_t m) {
  if (!saved_activations_leave(workload_, placement_, block)) return saved_activations(block, m);
  return bring_back(leaving_saved_activations(block, m));
}

void Activations::put_by(Direction direction, std::uint32_t layer) {
  const bool in_slots = direction == Direction::forward
                            ? boundary_home(workload_, placement_, layer) != Tier::device
                            : placement_.boundary_slots > 0;
  if (!in_slots) return;
  for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
    waiting_.emplace(passing(direction, layer, m), passing_[m]);
  }
}

void Activations::restore_boundary(Direction direction, std::uint32_t layer) {
  for (std::uint32_t m = 0; m < workload_.micro_batches; ++m) {
    const auto waits = waiting_.extract(passing(direction, layer, m));
    if (!waits.empty()) passing_[m] = waits.mapped();
  }
}

}  // namespace spillway::plan
