// Members: the ranks of a group, by their numbers in the job. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/units.hpp"

namespace spillway::comm::detail {

class Members {
 public:
  /// Makes the group of all ranks of a job.
  Members(Rank self, std::uint32_t ranks);

  /// Returns a group of some of these ranks, which are named by their numbers in this group and
  /// numbered anew in this order. Throws `Error{invalid_argument}` for a rank that is not in this
  /// group or there twice, and if this rank is not among them.
  [[nodiscard]] Members subgroup(std::span<const Rank> some) const;

  /// Returns this rank's number in the group.
  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] std::uint32_t ranks() const { return static_cast<std::uint32_t>(in_job_.size()); }
  [[nodiscard]] Rank in_job(Rank rank) const { return in_job_[rank.value()]; }
  /// Tag that differs between groups with a probability of 1 - 2^-32. 0: all ranks.
  [[nodiscard]] std::uint32_t tag() const { return tag_; }

 private:
  Members(Rank rank, std::vector<Rank> in_job);

  Rank rank_;
  std::vector<Rank> in_job_;
  std::uint32_t tag_ = 0;
};

}  // namespace spillway::comm::detail
