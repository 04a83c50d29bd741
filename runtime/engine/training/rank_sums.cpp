#include "runtime/engine/training/rank_sums.hpp"

#include <algorithm>

namespace spillway::engine {

RankSums::RankSums(StepEngine& engine) : engine_(engine) {
  const plan::Workload& workload = engine_.workload();
  first_leaf_.push_back(0);
  std::size_t largest = 0;
  for (std::uint32_t block = 0; block < workload.blocks.size(); ++block) {
    const std::size_t leaves = workload.shard_elements(block).value() / kLeafParameters;
    first_leaf_.push_back(first_leaf_.back() + leaves);
    largest = std::max(largest, leaves * workload.shards());
  }
  leaves_.resize(largest);
}

void RankSums::gather() {
  engine_.ranks()
      .host(RankGroups::Group::replicas)
      ->all_gather(engine_.memory().all_host(plan::PoolKind::host_leaves),
                   engine_.memory().all_host(plan::PoolKind::gathered_leaves))
      .wait();
}

std::span<const double> RankSums::of_rank(std::uint32_t rank) const {
  const std::span<const std::byte> bytes =
      engine_.memory().host({plan::PoolKind::gathered_leaves, rank});
  return {reinterpret_cast<const double*>(bytes.data()), bytes.size() / sizeof(double)};
}

double RankSums::loss() const {
  const plan::Workload& workload = engine_.workload();
  double sum = 0;
  for (std::uint32_t round = 0; round < workload.rounds; ++round) {
    for (std::uint32_t rank = 0; rank < workload.replicas.count; ++rank) {
      const std::span<const double> losses = of_rank(rank).subspan(first_leaf_.back());
      for (std::uint32_t m = 0; m < workload.micro_batches; ++m) {
        sum += losses[round * workload.micro_batches + m];
      }
    }
  }
  return sum;
}

std::span<const double> RankSums::leaves(std::uint32_t block) {
  const std::size_t first = first_leaf_[block];
  const std::size_t count = first_leaf_[block + 1] - first;
  const std::uint32_t shards = engine_.workload().shards();
  for (std::uint32_t rank = 0; rank < shards; ++rank) {
    std::ranges::copy(of_rank(rank).subspan(first, count),
                      std::span(leaves_).subspan(rank * count, count).begin());
  }
  return std::span(leaves_).first(shards * count);
}

}  // namespace spillway::engine
