#include "runtime/engine/ranks/rank_groups.hpp"

#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::engine {
namespace {

/// Ranks `first`, `first + distance`, ...: `count` of them.
std::vector<Rank> ranks_in_a_row(std::uint32_t first, std::uint32_t distance, std::uint32_t count) {
  std::vector<Rank> members;
  for (std::uint32_t i = 0; i < count; ++i) members.emplace_back(first + i * distance);
  return members;
}

}  // namespace

RankGroups::RankGroups(comm::Communicator* job, const plan::Grid& grid)
    : place_{.grid = grid, .rank = job == nullptr ? 0 : job->rank().value()}, votes_(grid.ranks()) {
  SPILLWAY_ASSERT(grid.ranks() == (job == nullptr ? 1 : job->ranks()));
  if (grid.ranks() > 1) hosts_.set(Group::job, job);
}

template <class End>
void RankGroups::Ends<End>::join(Group group, End& among, std::span<const Rank> members) {
  if (members.size() == 1) return;
  std::unique_ptr<End>& subgroup = subgroups_[static_cast<std::size_t>(group)];
  subgroup = among.subgroup(members);
  set(group, subgroup.get());
}

template <class End>
void RankGroups::Ends<End>::join(const plan::GridPlace& place, std::uint32_t node_ranks) {
  End* const job = of(Group::job);
  if (job == nullptr) return;
  const plan::Grid& grid = place.grid;
  const std::uint32_t stage = place.stage();
  const std::uint32_t replica = place.replica();
  const std::uint32_t tensor_index = place.tensor_index();
  if (grid.all_replicas()) {
    set(Group::replicas, job);
  } else {
    join(Group::replicas, *job,
         ranks_in_a_row(grid.rank_of(stage, 0, tensor_index), grid.tensor, grid.replicas));
    join(Group::stages, *job,
         ranks_in_a_row(grid.rank_of(0, replica, tensor_index), grid.replicas * grid.tensor,
                        grid.stages));
    join(Group::tensor, *job, ranks_in_a_row(grid.rank_of(stage, replica, 0), 1, grid.tensor));
  }
  if (node_ranks == 1 || of(Group::replicas) == nullptr) return;
  join(Group::node, *of(Group::replicas),
       ranks_in_a_row(replica / node_ranks * node_ranks, 1, node_ranks));
}

void RankGroups::join(std::uint32_t node_ranks, std::unique_ptr<comm::DeviceCommunicator> gpus) {
  gpu_job_ = std::move(gpus);
  if (!alone()) gpus_.set(Group::job, gpu_job_.get());
  hosts_.join(place_, node_ranks);
  gpus_.join(place_, node_ranks);
}

Bytes RankGroups::sent(Group group) const {
  if (gpu(group) != nullptr) return gpu(group)->sent();
  return host(group) == nullptr ? Bytes{} : host(group)->sent();
}

void RankGroups::barrier() {
  if (!alone()) host(Group::job)->barrier().wait();
}

bool RankGroups::any(Vote mine) {
  if (alone()) return mine == Vote::yes;
  host(Group::job)
      ->all_gather(std::as_bytes(std::span{&mine, 1}), std::as_writable_bytes(std::span{votes_}))
      .wait();
  return std::ranges::count(votes_, Vote::yes) > 0;
}

void RankGroups::expect_sums(Group group, std::size_t numbers) {
  if (host(group) == nullptr) return;
  terms_.resize(std::max(terms_.size(), host(group)->ranks() * numbers));
}

void RankGroups::add_up(Group group, std::span<double> numbers) {
  comm::Communicator* const ranks = host(group);
  if (ranks == nullptr) return;
  expect_sums(group, numbers.size());
  const std::span terms = std::span(terms_).first(ranks->ranks() * numbers.size());
  ranks->all_gather(std::as_bytes(numbers), std::as_writable_bytes(terms)).wait();
  std::ranges::fill(numbers, 0.0);
  for (std::size_t i = 0; i < terms.size(); ++i) numbers[i % numbers.size()] += terms[i];
}

}  // namespace spillway::engine
