#include "runtime/engine/training/rank_sums.hpp"

#include <algorithm>
#include <numeric>

#include "cpu_adam/gradient_norm.hpp"

namespace spillway::engine {

using Group = RankGroups::Group;

RankSums::RankSums(StepEngine& engine, std::size_t most_results) : engine_(engine) {
  const plan::Workload& workload = engine_.workload();
  first_leaf_.push_back(0);
  std::size_t largest = 0;
  for (std::uint32_t block = 0; block < workload.blocks.size(); ++block) {
    const std::size_t leaves = workload.shard_elements(block).value() / kLeafParameters;
    first_leaf_.push_back(first_leaf_.back() + leaves);
    largest = std::max(largest, leaves * workload.shards());
  }
  if (has_replicas()) leaves_.resize(largest);
  const std::size_t numbers = workload.blocks.size() + 1;
  numbers_.resize(most_results * numbers);
  engine_.ranks().expect_sums(Group::tensor, numbers);
  engine_.ranks().expect_sums(Group::stages, numbers_.size());
}

bool RankSums::has_replicas() const { return engine_.ranks().host(Group::replicas) != nullptr; }

std::span<const double> RankSums::numbers_of(std::size_t result) const {
  const std::size_t numbers = engine_.workload().blocks.size() + 1;
  return std::span(numbers_).subspan(result * numbers, numbers);
}

double RankSums::loss(std::size_t result) const { return numbers_of(result).back(); }

double RankSums::squares(std::size_t result) const {
  const std::span<const double> numbers = numbers_of(result);
  return std::accumulate(numbers.begin(), numbers.end() - 1, 0.0);
}

/// A stage knows nothing of other stages' blocks, and the loss is the last one's.
void RankSums::add_up_stage(std::size_t result) {
  const plan::Workload& workload = engine_.workload();
  const std::size_t count = workload.blocks.size() + 1;
  const std::span numbers = std::span(numbers_).subspan(result * count, count);
  std::ranges::fill(numbers, 0.0);
  const std::span<const double> losses = engine_.losses();  // which the leaves end with
  if (has_replicas()) gather_leaves();
  for (std::uint32_t block = 0; block < workload.blocks.size(); ++block) {
    if (!workload.blocks[block].has_parameters()) continue;
    const std::span<const double> all = leaves_of(block);
    numbers[block] = cpu_adam::sum_leaves(all.first(own_leaves(block, all.size())));
  }
  if (workload.runs(workload.head_layer()) && engine_.ranks().place().tensor_index() == 0) {
    numbers.back() = sum_of(losses);
  }
  engine_.ranks().add_up(Group::tensor, numbers);
}

void RankSums::add_up_stages(std::size_t results) {
  engine_.ranks().add_up(
      Group::stages, std::span(numbers_).first(results * (engine_.workload().blocks.size() + 1)));
}

/// Exchanges `host_leaves`, as the last step has left them, with the other replicas.
void RankSums::gather_leaves() {
  engine_.ranks()
      .host(Group::replicas)
      ->all_gather(engine_.memory().all_host(plan::PoolKind::host_leaves),
                   engine_.memory().all_host(plan::PoolKind::gathered_leaves))
      .wait();
}

std::span<const double> RankSums::of_replica(std::uint32_t replica) const {
  const std::span<const std::byte> bytes =
      engine_.memory().host({plan::PoolKind::gathered_leaves, replica});
  return {reinterpret_cast<const double*>(bytes.data()), bytes.size() / sizeof(double)};
}

/// Returns the sum of these losses or, once they are gathered, of all replicas': round by round, in
/// each in the order of ranks.
double RankSums::sum_of(std::span<const double> own_losses) const {
  if (!has_replicas()) return std::accumulate(own_losses.begin(), own_losses.end(), 0.0);
  const plan::Workload& workload = engine_.workload();
  double sum = 0;
  for (std::uint32_t round = 0; round < workload.rounds; ++round) {
    for (std::uint32_t replica = 0; replica < workload.replicas.count; ++replica) {
      const std::span<const double> losses = of_replica(replica).subspan(first_leaf_.back());
      for (std::uint32_t m = 0; m < workload.micro_batches; ++m) {
        sum += losses[index_in_step(workload, round, m)];
      }
    }
  }
  return sum;
}

/// Returns the leaves of a block's gradient, from its start, until the next call.
std::span<const double> RankSums::leaves_of(std::uint32_t block) {
  if (!has_replicas()) return engine_.norm_leaves(block);
  const std::size_t first = first_leaf_[block];
  const std::size_t count = first_leaf_[block + 1] - first;
  const std::uint32_t shards = engine_.workload().shards();
  for (std::uint32_t rank = 0; rank < shards; ++rank) {
    std::ranges::copy(of_replica(rank).subspan(first, count),
                      std::span(leaves_).subspan(rank * count, count).begin());
  }
  return std::span(leaves_).first(shards * count);
}

/// Number of leaves of a block that this rank gives to the norm. Only the first rank of a tensor
/// group gives those of the parameters that all its ranks have.
std::size_t RankSums::own_leaves(std::uint32_t block, std::size_t all) const {
  if (engine_.ranks().place().tensor_index() == 0) return all;
  return engine_.workload().blocks[block].shared_first.value() / kLeafParameters;
}

}  // namespace spillway::engine
