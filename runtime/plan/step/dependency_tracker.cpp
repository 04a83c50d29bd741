#include "runtime/plan/step/dependency_tracker.hpp"

#include <algorithm>

namespace spillway::plan {
namespace {

constexpr std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }

constexpr bool is_in(std::size_t circumstance, Circumstances when) {
  return (when >> circumstance & 1U) != 0;
}

}  // namespace

void DependencyTracker::clear() {
  for (PoolUses& pool : uses_) {
    for (std::vector<Use>& uses : pool.own) uses.clear();
    std::ranges::fill(pool.group_of, 0);
    pool.groups.clear();
  }
  ops_.clear();
  orders_.clear();
  dependencies_.clear();
  started_ = {};
}

std::span<const OpIndex> DependencyTracker::append(const Op& op, std::span<const Access> accesses) {
  const auto index = static_cast<OpIndex>(ops_.size());
  ops_.push_back({.lane = op.lane, .when = performed_in(op), .first = 0, .count = 0});
  orders_.resize(orders_.size() + kCircumstances);
  candidates_.clear();
  for (const Access& access : accesses) use(index, access);
  if (!std::ranges::is_sorted(candidates_)) std::ranges::sort(candidates_);
  const auto repeated = std::ranges::unique(candidates_);
  candidates_.erase(repeated.begin(), repeated.end());
  kept_.assign(candidates_.size(), false);
  for (std::size_t c = 0; c < kCircumstances; ++c) {
    if (is_in(c, ops_[index].when)) reduce(index, c);
  }
  ops_[index].first = static_cast<std::uint32_t>(dependencies_.size());
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (kept_[i]) dependencies_.push_back(candidates_[i]);
  }
  ops_[index].count = static_cast<std::uint32_t>(dependencies_.size()) - ops_[index].first;
  if (is_serial(op.lane)) {
    for (const OpIndex dependency : dependencies_of(index)) {
      for (std::size_t c = 0; c < kCircumstances; ++c) {
        if (is_in(c, ops_[index].when)) mark_seen(dependency, index, c);
      }
    }
  }
  return dependencies_of(index);
}

/// Notes the use of buffers, and the earlier uses that it has to wait for.
void DependencyTracker::use(OpIndex op, const Access& access) {
  const Buffer& buffer = access.buffer;
  PoolUses& pool = uses_[static_cast<std::size_t>(buffer.pool)];
  const std::size_t end = std::size_t{buffer.first} + buffer.count;
  if (pool.own.size() < end) {
    pool.own.resize(end);
    pool.group_of.resize(end);
  }
  const Use now{.op = op, .when = ops_[op].when, .writes = access.writes};
  if (buffer.count == 1) {
    part(pool, buffer.first);
    static_cast<void>(meet(op, access.writes, pool.own[buffer.first], now.when));
    note(now, pool.own[buffer.first]);
    return;
  }
  Group& group = group_of(pool, buffer);
  const Circumstances open = meet(op, access.writes, group.uses, now.when);
  for (std::size_t b = buffer.first; b < end && open != 0; ++b) {
    static_cast<void>(meet(op, access.writes, pool.own[b], open));
  }
  note(now, group.uses);
}

/// Returns the group of exactly these buffers.
DependencyTracker::Group& DependencyTracker::group_of(PoolUses& pool, const Buffer& buffer) {
  if (const std::uint32_t known = pool.group_of[buffer.first]; known > 0) {
    Group& group = pool.groups[known - 1];
    if (group.first == buffer.first && group.count == buffer.count) return group;
  }
  for (std::uint32_t i = 0; i < buffer.count; ++i) part(pool, buffer.first + i);
  pool.groups.push_back({.first = buffer.first, .count = buffer.count});
  const auto members = std::span(pool.group_of).subspan(buffer.first, buffer.count);
  std::ranges::fill(members, static_cast<std::uint32_t>(pool.groups.size()));
  return pool.groups.back();
}

/// Gives the buffers of a buffer's group, if it is in one, their uses for themselves.
void DependencyTracker::part(PoolUses& pool, std::uint32_t buffer) {
  if (pool.group_of[buffer] == 0) return;
  const Group& group = pool.groups[pool.group_of[buffer] - 1];
  for (std::uint32_t b = group.first; b < group.first + group.count; ++b) {
    for (const Use& each : group.uses) note(each, pool.own[b]);
    pool.group_of[b] = 0;
  }
}

/// Adds to the candidates what an op that uses a buffer has to wait for. `open`: the circumstances
/// in which no later write has been met; returns those in which none of these has been either.
Circumstances DependencyTracker::meet(OpIndex op, bool writes, const std::vector<Use>& uses,
                                      Circumstances open) {
  const Lane lane = ops_[op].lane;
  for (auto earlier = uses.rbegin(); earlier != uses.rend() && open != 0; ++earlier) {
    if (earlier->op == op) {
      if (earlier->writes) return 0;  // what it writes it may read as well
      continue;
    }
    // A serial lane orders its ops by itself.
    const bool elsewhere = ops_[earlier->op].lane != lane || !is_serial(lane);
    if ((writes || earlier->writes) && elsewhere && (earlier->when & open) != 0) {
      candidates_.push_back(earlier->op);
    }
    if (earlier->writes) open &= static_cast<Circumstances>(~earlier->when);
    // An earlier reader of the lane has waited for the writes before it.
    if (!writes && !elsewhere) open &= static_cast<Circumstances>(~earlier->when);
  }
  return open;
}

/// Adds a use to those of a buffer, without those that no later op has to wait for.
void DependencyTracker::note(const Use& use, std::vector<Use>& uses) const {
  if (!uses.empty() && uses.back().op == use.op && uses.back().writes) return;
  const Lane lane = ops_[use.op].lane;
  std::erase_if(uses, [&](Use& earlier) {
    // The next write waits for the last reader of a lane, and so for all of them.
    const bool last_reader = !earlier.writes && earlier.when == use.when && is_serial(lane) &&
                             ops_[earlier.op].lane == lane;
    if (use.writes) earlier.when &= static_cast<Circumstances>(~use.when);
    return earlier.when == 0 || last_reader;
  });
  uses.push_back(use);
}

/// Keeps the candidates that nothing else puts before the op, latest first.
void DependencyTracker::reduce(OpIndex op, std::size_t circumstance) {
  Order& order = order_of(op, circumstance);
  PerLane& started = started_[circumstance];
  const std::size_t lane = index_of(ops_[op].lane);
  if (is_serial(ops_[op].lane)) {
    if (started[lane] > 0) follow(started[lane] - 1, order, circumstance);
    started[lane] = op + 1;
  }
  passed_.clear();
  for (std::size_t i = candidates_.size(); i-- > 0;) {
    const OpIndex candidate = candidates_[i];
    if (!is_in(circumstance, ops_[candidate].when)) continue;
    if (is_complete(candidate, order, circumstance)) continue;
    kept_[i] = true;
    follow(candidate, order, circumstance);
  }
}

bool DependencyTracker::is_complete(OpIndex op, const Order& order,
                                    std::size_t circumstance) const {
  const Lane lane = ops_[op].lane;
  if (is_serial(lane)) return order.complete[index_of(lane)] > op;
  const PerLane& seen_by = order_of(op, circumstance).seen_by;
  for (std::size_t lane_after = 0; lane_after < kSerialLanes; ++lane_after) {
    const OpIndex first = seen_by[lane_after];
    if (first > 0 && order.complete[lane_after] >= first) return true;
  }
  return std::ranges::find(passed_, op) != passed_.end();
}

/// Adds to what is complete a dependency, and with it all that was complete when it started.
void DependencyTracker::follow(OpIndex dependency, Order& order, std::size_t circumstance) {
  const Order& earlier = order_of(dependency, circumstance);
  for (std::size_t lane = 0; lane < kSerialLanes; ++lane) {
    order.complete[lane] = std::max(order.complete[lane], earlier.complete[lane]);
  }
  const Lane lane = ops_[dependency].lane;
  if (is_serial(lane)) {
    OpIndex& complete = order.complete[index_of(lane)];
    complete = std::max(complete, dependency + 1);
    return;
  }
  for (const OpIndex before : dependencies_of(dependency)) {
    if (is_serial(ops_[before].lane) || !is_in(circumstance, ops_[before].when)) continue;
    passed_.push_back(before);
    follow(before, order, circumstance);
  }
}

/// Notes that `by`, of a serial lane, comes after an op of a disk lane and the disk ops before it.
void DependencyTracker::mark_seen(OpIndex op, OpIndex by, std::size_t circumstance) {
  if (is_serial(ops_[op].lane) || !is_in(circumstance, ops_[op].when)) return;
  OpIndex& seen_by = order_of(op, circumstance).seen_by[index_of(ops_[by].lane)];
  if (seen_by > 0) return;
  seen_by = by + 1;
  for (const OpIndex before : dependencies_of(op)) mark_seen(before, by, circumstance);
}

std::span<const OpIndex> DependencyTracker::dependencies_of(OpIndex op) const {
  return std::span(dependencies_).subspan(ops_[op].first, ops_[op].count);
}

StepPlan in_a_row(std::span<const StepPlan> lists) {
  DependencyTracker tracker;
  StepPlan all;
  for (const StepPlan& list : lists) {
    for (Op op : list.ops) {
      const auto accesses = list.accesses_of(op);
      const auto dependencies = tracker.append(op, accesses);
      op.first_access = static_cast<std::uint32_t>(all.accesses.size());
      all.accesses.insert(all.accesses.end(), accesses.begin(), accesses.end());
      op.first_dependency = static_cast<std::uint32_t>(all.dependencies.size());
      op.dependency_count = static_cast<std::uint32_t>(dependencies.size());
      all.dependencies.insert(all.dependencies.end(), dependencies.begin(), dependencies.end());
      all.ops.push_back(op);
    }
  }
  return all;
}

}  // namespace spillway::plan
