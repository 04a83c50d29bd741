#include "comm/detail/members.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::comm::detail {
namespace {

/// FNV-1a, over numbers in place of bytes.
std::uint32_t hash(std::span<const Rank> ranks) {
  std::uint32_t hash = 2166136261;
  for (const Rank rank : ranks) hash = (hash ^ rank.value()) * 16777619;
  return std::max(hash, std::uint32_t{1});
}

}  // namespace

Members::Members(Rank self, std::uint32_t ranks) : rank_(self), in_job_(ranks) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) in_job_[rank] = Rank{rank};
}

Members::Members(Rank rank, std::vector<Rank> in_job)
    : rank_(rank), in_job_(std::move(in_job)), tag_(hash(in_job_)) {}

Members Members::subgroup(std::span<const Rank> some) const {
  std::vector<Rank> in_job;
  in_job.reserve(some.size());
  for (const Rank rank : some) {
    check(rank.value() < ranks(), ErrorCode::invalid_argument,
          fmt::format("a group of {} ranks has no rank {} for a subgroup", ranks(), rank.value()));
    check(std::ranges::find(in_job, in_job_[rank.value()]) == in_job.end(),
          ErrorCode::invalid_argument,
          fmt::format("rank {} is in the list of a subgroup twice", rank.value()));
    in_job.push_back(in_job_[rank.value()]);
  }
  const auto self = std::ranges::find(in_job, in_job_[rank_.value()]);
  check(self != in_job.end(), ErrorCode::invalid_argument,
        fmt::format("rank {} is not in the list of the subgroup that it makes", rank_.value()));
  const Rank rank{static_cast<std::uint32_t>(self - in_job.begin())};
  return {rank, std::move(in_job)};
}

}  // namespace spillway::comm::detail
