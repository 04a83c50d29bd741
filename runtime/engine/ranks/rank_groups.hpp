// RankGroups: a job's ranks as one of them sees them: its place in their grid, its ends of the
// groups that it belongs to, and what the ranks tell each other between steps. Made once, when the
// process has its communicator; code that works with other ranks is given this object. Control
// thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/device_communicator.hpp"
#include "runtime/base/units.hpp"
#include "runtime/plan/ranks.hpp"

namespace spillway::engine {

enum class Vote : std::uint8_t { no, yes };

/// Every rank calls the functions that involve all ranks, in the same order. A rank alone agrees
/// with itself.
class RankGroups {
 public:
  using Group = plan::RankGroup;

  /// Makes a rank that is alone.
  RankGroups() = default;
  /// Makes a rank of `job`, which has the ranks of the grid and outlives this object; null: this
  /// rank is alone. The rank belongs to no group but the job until `join`.
  RankGroups(comm::Communicator* job, const plan::Grid& grid);
  /// Makes a rank of a grid on paper: it has a place, and there are no others.
  explicit RankGroups(const plan::GridPlace& place) : place_(place) {}
  RankGroups(const RankGroups&) = delete;
  RankGroups& operator=(const RankGroups&) = delete;

  /// Joins the groups of this rank's place. `node_ranks`: replicas of a machine, which keep
  /// parameters together (plan::Replicas::secondary). `gpus`: the job's ranks on the memory of
  /// GPUs; null: the ranks compute on the host. All ranks call it once, with the same arguments.
  void join(std::uint32_t node_ranks, std::unique_ptr<comm::DeviceCommunicator> gpus = nullptr);

  [[nodiscard]] const plan::GridPlace& place() const { return place_; }
  [[nodiscard]] bool alone() const { return host(Group::job) == nullptr; }
  /// Whether this rank writes what the job reports.
  [[nodiscard]] bool leads() const { return place_.rank == 0; }

  /// Returns this rank's end of a group on the memory of hosts; null for a group of one.
  [[nodiscard]] comm::Communicator* host(Group group) const { return hosts_.of(group); }
  /// Returns the same on the memory of GPUs; null also where the ranks compute on the host.
  [[nodiscard]] comm::DeviceCommunicator* gpu(Group group) const { return gpus_.of(group); }
  /// Bytes that this rank has sent in a group by ops of plans.
  [[nodiscard]] Bytes sent(Group group) const;

  /// Blocks until all ranks have called it.
  void barrier();
  /// Whether any rank votes yes. Allocates nothing.
  [[nodiscard]] bool any(Vote mine);
  /// Returns the value of rank 0.
  template <class Value>
  [[nodiscard]] Value first(Value mine);
  /// Returns the value of every rank, by rank.
  template <class Value>
  [[nodiscard]] std::vector<Value> gather(const Value& mine);
  /// Returns the list of every rank, by rank. They may differ in length.
  template <class Value>
  [[nodiscard]] std::vector<std::vector<Value>> gather_lists(std::vector<Value> mine);

  /// Makes room for sums of so many numbers, so that `add_up` allocates nothing.
  void expect_sums(Group group, std::size_t numbers);
  /// Replaces each number by the sum of the group's, added in the order of ranks.
  void add_up(Group group, std::span<double> numbers);

 private:
  /// This rank's ends on the memory that `End` moves.
  template <class End>
  class Ends {
   public:
    [[nodiscard]] End* of(Group group) const { return ends_[static_cast<std::size_t>(group)]; }
    void set(Group group, End* end) { ends_[static_cast<std::size_t>(group)] = end; }
    void join(const plan::GridPlace& place, std::uint32_t node_ranks);

   private:
    void join(Group group, End& among, std::span<const Rank> members);

    std::array<End*, plan::kRankGroups> ends_{};
    std::array<std::unique_ptr<End>, plan::kRankGroups> subgroups_;
  };

  plan::GridPlace place_{};
  Ends<comm::Communicator> hosts_;
  std::unique_ptr<comm::DeviceCommunicator> gpu_job_;  // or null
  Ends<comm::DeviceCommunicator> gpus_;
  std::vector<Vote> votes_;    // by rank
  std::vector<double> terms_;  // of sums, rank by rank
};

template <class Value>
Value RankGroups::first(Value mine) {
  static_assert(std::is_trivially_copyable_v<Value>);
  if (alone()) return mine;
  host(Group::job)->broadcast(std::as_writable_bytes(std::span{&mine, 1}), Rank{}).wait();
  return mine;
}

template <class Value>
std::vector<Value> RankGroups::gather(const Value& mine) {
  static_assert(std::is_trivially_copyable_v<Value>);
  if (alone()) return {mine};
  std::vector<Value> all(place_.grid.ranks());
  host(Group::job)
      ->all_gather(std::as_bytes(std::span{&mine, 1}), std::as_writable_bytes(std::span{all}))
      .wait();
  return all;
}

template <class Value>
std::vector<std::vector<Value>> RankGroups::gather_lists(std::vector<Value> mine) {
  static_assert(std::is_trivially_copyable_v<Value>);
  if (alone()) return {std::move(mine)};
  const std::vector<std::uint64_t> sizes = gather(std::uint64_t{mine.size()});
  const std::uint64_t longest = std::ranges::max(sizes);
  std::vector<std::vector<Value>> all(sizes.size());
  if (longest == 0) return all;
  mine.resize(longest);
  std::vector<Value> together(longest * sizes.size());
  host(Group::job)
      ->all_gather(std::as_bytes(std::span{mine}), std::as_writable_bytes(std::span{together}))
      .wait();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto own = std::span(together).subspan(rank * longest, sizes[rank]);
    all[rank].assign(own.begin(), own.end());
  }
  return all;
}

/// Calls `body`. If it throws, sends the reason to the other ranks of `job` before objects here are
/// destroyed; NCCL could not pass it on. `job`: null for a rank that is alone.
template <class Body>
auto abandon_on_error(comm::Communicator* job, Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    if (job != nullptr) job->abandon(error.what());
    throw;
  }
}

}  // namespace spillway::engine
