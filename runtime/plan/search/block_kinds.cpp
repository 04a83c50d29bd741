#include "runtime/plan/search/block_kinds.hpp"

#include <algorithm>
#include <tuple>

namespace spillway::plan::detail {

Need& Need::operator+=(const Need& other) {
  work += other.work;
  for (std::size_t tier = 0; tier < bytes.size(); ++tier) bytes[tier] += other.bytes[tier];
  return *this;
}

Need& Need::operator*=(double factor) {
  work *= factor;
  for (double& of_tier : bytes) of_tier *= factor;
  return *this;
}

BlockKinds::BlockKinds(const PoolSizes& sizes, const Placement& placement)
    : sizes_(&sizes), scratch_(placement) {
  for (std::uint32_t b = 0; b < sizes.size(); ++b) {
    const auto same =
        std::ranges::find_if(samples_, [&](std::uint32_t sample) { return alike(sample, b); });
    kinds_.push_back(static_cast<std::uint32_t>(same - samples_.begin()));
    if (same == samples_.end()) samples_.push_back(b);
  }
  known_.resize(samples_.size());
}

bool BlockKinds::alike(std::uint32_t a, std::uint32_t b) const {
  return sizes_->block(a) == sizes_->block(b) && of_one_shape(a, b);
}

bool BlockKinds::of_one_shape(std::uint32_t a, std::uint32_t b) const {
  const Workload& w = sizes_->workload();
  const auto facts = [&](std::uint32_t block) {
    const BlockShape& shape = w.blocks[block];
    return std::tuple(shape.padded_parameters, shape.forward_flops, shape.backward_flops,
                      shape.saved_bytes, block == 0, block == w.head_layer());
  };
  return facts(a) == facts(b);
}

std::vector<BlockGroup> BlockKinds::groups_of(const Placement& placement) const {
  std::vector<BlockGroup> groups;
  for (std::uint32_t b = 0; b < sizes_->size(); ++b) {
    const BlockCut& cut = placement.blocks[b];
    auto same = std::ranges::find_if(groups, [&](const BlockGroup& group) {
      return group.cut == cut && of_one_shape(group.blocks.front(), b);
    });
    if (same == groups.end()) same = groups.insert(groups.end(), {.cut = cut, .blocks = {}});
    same->blocks.push_back(b);
  }
  return groups;
}

std::vector<BlockCut> BlockKinds::others(const BlockGroup& group,
                                         const std::vector<BlockCut>& cuts) const {
  const Workload& w = sizes_->workload();
  const std::uint32_t sample = group.blocks.front();
  std::vector<BlockCut> list;
  for (BlockCut cut : cuts) {
    if (sizes_->saved(sample) == Bytes{}) cut.saved = group.cut.saved;
    if (sample == w.head_layer()) cut.output = group.cut.output;
    if (cut == group.cut || std::ranges::count(list, cut) > 0) continue;
    if (is_admissible(w, cut)) list.push_back(cut);
  }
  return list;
}

Need BlockKinds::need_of(std::uint32_t block, const BlockCut& cut) {
  auto& known = known_[kinds_[block]];
  const auto same = std::ranges::find(known, cut, &std::pair<BlockCut, Need>::first);
  if (same != known.end()) return same->second;
  const std::uint32_t sample = samples_[kinds_[block]];
  scratch_.blocks[sample] = cut;
  Need need{.work = work_of(sizes_->workload(), scratch_, sample)};
  for (const PoolKind pool : block_pools()) {
    if (!sizes_->has_share(pool, sample, cut)) continue;
    const Bytes bytes = sizes_->block(sample).shares[static_cast<std::size_t>(pool)];
    need.bytes.at(static_cast<std::size_t>(tier_of(pool))) += static_cast<double>(bytes.value());
  }
  known.emplace_back(cut, need);
  return need;
}

}  // namespace spillway::plan::detail
