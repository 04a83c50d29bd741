#include "runtime/plan/placement/memory_sums.hpp"

#include <algorithm>
#include <bit>

#include "runtime/base/error.hpp"

namespace spillway::plan {

void SizeCounts::add(std::uint32_t index) {
  ++counts_[index];
  end_ = std::max<std::size_t>(end_, index + 1U);
}

void SizeCounts::remove(std::uint32_t index) {
  SPILLWAY_ASSERT(counts_[index] > 0);
  --counts_[index];
  while (end_ > 0 && counts_[end_ - 1] == 0) --end_;
}

MemorySums::MemorySums(const PoolSizes& sizes, const Placement& placement)
    : sizes_(&sizes),
      streamed_(sizes.padded_sizes().size()),
      recomputed_(sizes.saved_sizes().size()),
      leaving_(sizes.saved_sizes().size()),
      staged_(sizes.saved_sizes().size()) {
  SPILLWAY_ASSERT(placement.blocks.size() == sizes.size());
  for (std::uint32_t b = 0; b < sizes.size(); ++b) add(b, placement.blocks[b]);
}

template <class Sum, class Count>
void MemorySums::apply(std::uint32_t block, const BlockCut& cut, const Sum& sum,
                       const Count& count) {
  const PoolSizes::Block& size = sizes_->block(block);
  for (PoolSet pools = sizes_->pools_of(block, cut); pools != 0; pools &= pools - 1) {
    const auto p = static_cast<std::size_t>(std::countr_zero(pools));
    sum(shares_[p], size.shares[p]);
    sum(tier_shares_[static_cast<std::size_t>(tier_of(static_cast<PoolKind>(p)))], size.shares[p]);
  }
  if (!cut.resident() || sizes_->workload().gathers()) count(streamed_, size.padded_index);
  if (sizes_->saved_leaves(block, cut)) {
    count(leaving_, size.saved_index);
    if (cut.saved == Tier::nvme) count(staged_, size.saved_index);
  } else if (!cut.saved) {
    count(recomputed_, size.saved_index);
  }
}

void MemorySums::add(std::uint32_t block, const BlockCut& cut) {
  apply(
      block, cut, [](Bytes& quantity, Bytes amount) { quantity += amount; },
      [](SizeCounts& sizes, std::uint32_t index) { sizes.add(index); });
}

void MemorySums::remove(std::uint32_t block, const BlockCut& cut) {
  apply(
      block, cut, [](Bytes& quantity, Bytes amount) { quantity -= amount; },
      [](SizeCounts& sizes, std::uint32_t index) { sizes.remove(index); });
}

/// Each block that the host updates has a share of the gradients there; where the device sums its
/// rounds, it has as large a share of those sums too.
bool MemorySums::sums_on_host() const {
  return sizes_->workload().sums_gradients() &&
         share_of(PoolKind::host_gradients) > share_of(PoolKind::device_sums);
}

Strides MemorySums::strides() const {
  return {
      .streamed = ElementCount{streamed_.largest(sizes_->padded_sizes())},
      .leaving = Bytes{leaving_.largest(sizes_->saved_sizes())},
      .staged = Bytes{staged_.largest(sizes_->saved_sizes())},
      .recomputed = Bytes{recomputed_.largest(sizes_->saved_sizes())},
      .lands = sums_on_host(),
  };
}

Bytes memory_total(const Placement& placement, const MemorySums& sums, Tier tier) {
  const Strides strides = sums.strides();
  Bytes total = sums.share_of(tier);
  for (const PoolKind pool : pools_in(tier)) {
    total += row_of(pool, sums.sizes(), placement, strides).bytes();
  }
  return total;
}

}  // namespace spillway::plan
