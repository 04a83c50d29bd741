#include "runtime/plan/step/builder/buffer_pools.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/plan/placement/pools.hpp"

namespace spillway::plan {

void BufferPools::open(const Placement& placement) {
  gradient_slots_ = placement.gradient_slots;
  leaves_first_ = placement.order == WorkOrder::micro_batch_major;
  for (std::size_t p = 0; p < kPoolCount; ++p) {
    const auto pool = static_cast<PoolKind>(p);
    if (rule_of(pool).takes_turns()) open(pool, slots_of(pool, workload_, placement));
  }
}

void BufferPools::open(PoolKind pool, std::uint32_t buffers) {
  auto& free = free_[static_cast<std::size_t>(pool)];
  free.clear();
  for (std::uint32_t i = 0; i < buffers; ++i) free.push_back(i);
}

Buffer BufferPools::take_free(PoolKind pool) {
  auto& free = free_[static_cast<std::size_t>(pool)];
  SPILLWAY_ASSERT(!free.empty());
  const Buffer buffer{pool, free.front()};
  free.pop_front();
  return buffer;
}

Buffer BufferPools::take_slot(PoolKind pool, std::uint32_t block) {
  if (workload_.operator_tiles && block == 0) return of_vectors(pool);
  auto& free = free_[static_cast<std::size_t>(pool)];
  const bool wide = workload_.blocks[block].padded_parameters > narrow_slots_.of(gradient_slots_);
  auto slot = std::ranges::find_if(free, [&](std::uint32_t i) {
    return wide ? i == 0 : i > 0 || !leaves_first_;  // those free for longest come first
  });
  if (slot == free.end() && !wide) slot = free.begin();
  SPILLWAY_ASSERT(slot != free.end());
  const Buffer buffer{pool, *slot};
  free.erase(slot);
  return buffer;
}

void BufferPools::give_back(const Buffer& buffer) {
  const PoolRule& rule = rule_of(buffer.pool);
  const bool of_vectors =
      rule.layout == PoolLayout::gradient_slots && buffer.first == gradient_slots_;
  if (!rule.takes_turns() || of_vectors) return;
  free_[static_cast<std::size_t>(buffer.pool)].push_back(buffer.first);
}

}  // namespace spillway::plan
