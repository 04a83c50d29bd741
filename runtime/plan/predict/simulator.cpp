#include "runtime/plan/predict/simulator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::plan {
namespace {

constexpr std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }

double seconds_of(double amount, double rate, std::string_view field) {
  if (amount == 0) return 0;
  if (rate <= 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the plan uses MachineProfile::{} and the profile has none; measure it",
                            field));
  }
  return amount / rate;
}

/// Seconds of what costs nothing on a machine where it has not been measured.
double seconds_where_known(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

/// Two lanes on one resource, and the fraction of its own rate that each keeps while both work.
struct SharedResource {
  Lane first;
  Lane second;
  double kept = 1;
};

double kept_rate(double combined, double first, double second) {
  if (combined <= 0 || first + second <= 0) return 1;
  return std::min(1.0, combined / (first + second));
}

std::array<SharedResource, 2> shared_resources(const MachineProfile& profile) {
  return {{{Lane::h2d, Lane::d2h, kept_rate(profile.h2d_d2h_combined, profile.h2d, profile.d2h)},
           {Lane::nvme_read, Lane::nvme_write,
            kept_rate(profile.nvme_combined, profile.nvme_read, profile.nvme_write)}}};
}

std::array<double, kMachineLanes> core_shares(const CoreShares& cores) {
  std::array<double, kMachineLanes> shares{};
  shares[index_of(Lane::gpu)] = cores.compute;
  shares[index_of(Lane::cpu)] = cores.update;
  shares[index_of(Lane::h2d)] = shares[index_of(Lane::d2h)] = cores.copy;
  shares[index_of(Lane::nvme_read)] = shares[index_of(Lane::nvme_write)] = cores.disk;
  return shares;
}

/// A lane's queue and the op that it runs.
struct LaneState {
  std::vector<OpIndex> queue;
  std::size_t started = 0;             ///< ops of the queue that have started
  std::uint32_t dependencies_met = 0;  ///< of the next op, leading ones only
  bool running = false;
  double ended = 0;  ///< when the last op did
  double overhead_left = 0;
  double work_left = 0;  ///< in seconds at full rate
  double to_start = 0;   ///< seconds that the ops which have not started take at least

  [[nodiscard]] bool working() const { return running && overhead_left <= 0 && work_left > 0; }
};

/// A rank's part of a simulation.
struct SimulatedRank {
  const StepPlan* plan = nullptr;
  std::array<LaneState, kMachineLanes> lanes{};
  std::vector<double> work{};  ///< seconds of each op alone
  std::vector<bool> complete{};
  Prediction result{};
};

class Simulation {
 public:
  Simulation(std::span<const StepPlan* const> plans, const MachineProfile& profile,
             double limit = std::numeric_limits<double>::infinity())
      : profile_(profile),
        shared_(shared_resources(profile)),
        core_shares_(core_shares(profile.cores)),
        limit_(limit * (1 + kSumRounding)) {
    for (const StepPlan* plan : plans) {
      SimulatedRank& rank = ranks_.emplace_back();
      rank.plan = plan;
      rank.work.reserve(plan->ops.size());
      rank.complete.resize(plan->ops.size());
      rank.result.ops.resize(plan->ops.size());
      for (OpIndex i = 0; i < plan->ops.size(); ++i) {
        check_op(*plan, i);
        LaneState& lane = rank.lanes[index_of(plan->ops[i].lane)];
        lane.queue.push_back(i);
        rank.work.push_back(work_seconds(profile, plan->ops[i]));
        lane.to_start += profile.op_overhead_seconds + rank.work.back();
      }
    }
  }

  /// Returns nothing as soon as the step is known to take longer than the limit.
  std::vector<Prediction> run() {
    for (start_ready(); anything_runs(); start_ready()) {
      if (least_end() > limit_) return {};
      advance();
    }
    std::vector<Prediction> results;
    for (SimulatedRank& rank : ranks_) {
      for (const LaneState& lane : rank.lanes) check_end(lane);
      rank.result.step_seconds = now_;
      rank.result.gpu_idle = now_ - rank.result[Lane::gpu].busy;
      if (ranks_.size() == 1) trace_critical_path(rank);
      results.push_back(std::move(rank.result));
    }
    return results;
  }

 private:
  static void check_op(const StepPlan& plan, OpIndex i) {
    const Op& op = plan.ops[i];
    if (index_of(op.lane) >= kMachineLanes) refuse(fmt::format("op {} names no lane", i));
    const std::uint64_t end = std::uint64_t{op.first_dependency} + op.dependency_count;
    if (end > plan.dependencies.size()) {
      refuse(fmt::format("op {} has dependencies beyond the list", i));
    }
    for (const OpIndex dependency : plan.dependencies_of(op)) {
      if (dependency < i) continue;
      refuse(fmt::format("op {} depends on op {}, which does not stand before it", i, dependency));
    }
  }

  /// Ops of one rank never wait for themselves, but messages of several may.
  void check_end(const LaneState& lane) const {
    SPILLWAY_ASSERT(ranks_.size() > 1 || lane.started == lane.queue.size());
    if (lane.started < lane.queue.size()) refuse("the messages of the stages wait for each other");
  }

  /// Formats nothing as long as nothing is wrong, unlike the argument of `check`.
  [[noreturn]] static void refuse(const std::string& what) {
    throw Error(ErrorCode::invalid_argument, what);
  }

  /// Returns whether the lane can start its next op, as far as its own rank knows.
  static bool is_ready(const SimulatedRank& rank, LaneState& lane) {
    if (lane.running || lane.started == lane.queue.size()) return false;
    const auto dependencies = rank.plan->dependencies_of(rank.plan->ops[lane.queue[lane.started]]);
    while (lane.dependencies_met < dependencies.size() &&
           rank.complete[dependencies[lane.dependencies_met]]) {
      ++lane.dependencies_met;
    }
    return lane.dependencies_met == dependencies.size();
  }

  void start(SimulatedRank& rank, LaneState& lane) const {
    const OpIndex next = lane.queue[lane.started];
    lane.running = true;
    lane.work_left = rank.work[next];
    lane.to_start -= profile_.op_overhead_seconds + lane.work_left;
    const bool waited = lane.ended < now_;
    lane.overhead_left = profile_.op_overhead_seconds + (waited ? profile_.wake_seconds : 0);
    lane.dependencies_met = 0;
    ++lane.started;
    rank.result.ops[next].start = now_;
  }

  /// A message starts on both its ranks or on none.
  void start_message(SimulatedRank& rank, LaneState& lane, const Op& op) {
    SimulatedRank& other = ranks_[op.peer];
    LaneState& others = other.lanes[index_of(Lane::net)];
    if (!is_ready(other, others)) return;
    const Op& end = other.plan->ops[others.queue[others.started]];
    const auto self = static_cast<std::uint32_t>(&rank - ranks_.data());
    if (!is_message(end) || end.kind == op.kind || end.peer != self) return;
    start(rank, lane);
    start(other, others);
  }

  static bool is_message(const Op& op) {
    return op.kind == OpKind::send || op.kind == OpKind::receive;
  }

  void start_ready() {
    for (SimulatedRank& rank : ranks_) {
      for (LaneState& lane : rank.lanes) {
        if (!is_ready(rank, lane)) continue;
        const Op& op = rank.plan->ops[lane.queue[lane.started]];
        if (ranks_.size() > 1 && is_message(op)) {
          start_message(rank, lane, op);
        } else {
          start(rank, lane);
        }
      }
    }
  }

  [[nodiscard]] bool anything_runs() const {
    return std::ranges::any_of(ranks_, [](const SimulatedRank& rank) {
      return std::ranges::any_of(rank.lanes, [](const LaneState& lane) { return lane.running; });
    });
  }

  /// Returns at which part of its own rate each lane works.
  [[nodiscard]] std::array<double, kMachineLanes> speed_of(const SimulatedRank& rank) const {
    std::array<double, kMachineLanes> speed;
    speed.fill(1);
    for (const SharedResource& shared : shared_) {
      const std::size_t first = index_of(shared.first);
      const std::size_t second = index_of(shared.second);
      if (!rank.lanes[first].working() || !rank.lanes[second].working()) continue;
      speed[first] = speed[second] = shared.kept;
    }
    if (profile_.cores.compute > 0) divide_cores(rank, speed);
    return speed;
  }

  void divide_cores(const SimulatedRank& rank, std::array<double, kMachineLanes>& speed) const {
    double wanted = 0;
    for (std::size_t i = 0; i < kMachineLanes; ++i) {
      if (rank.lanes[i].working()) wanted += core_shares_[i];
    }
    if (wanted <= 1) return;
    for (std::size_t i = 0; i < kMachineLanes; ++i) {
      if (rank.lanes[i].working() && core_shares_[i] > 0) speed[i] /= wanted;
    }
  }

  /// Returns when the step ends at the earliest: no lane works faster than alone.
  [[nodiscard]] double least_end() const {
    double longest = 0;
    for (const SimulatedRank& rank : ranks_) {
      for (const LaneState& lane : rank.lanes) {
        const double running = lane.running ? lane.overhead_left + lane.work_left : 0;
        longest = std::max(longest, lane.to_start + running);
      }
    }
    return now_ + longest;
  }

  static double seconds_until(const LaneState& lane, double speed) {
    return lane.overhead_left > 0 ? lane.overhead_left : lane.work_left / speed;
  }

  /// Runs until the next op ends or passes from overhead to work.
  void advance() {
    double span = std::numeric_limits<double>::infinity();
    for (const SimulatedRank& rank : ranks_) {
      const std::array<double, kMachineLanes> speed = speed_of(rank);
      for (std::size_t i = 0; i < kMachineLanes; ++i) {
        const LaneState& lane = rank.lanes[i];
        if (lane.running) span = std::min(span, seconds_until(lane, speed[i]));
      }
    }
    now_ += span;
    for (SimulatedRank& rank : ranks_) advance(rank, span);
  }

  void advance(SimulatedRank& rank, double span) const {
    const std::array<double, kMachineLanes> speed = speed_of(rank);
    account(rank, span);
    for (std::size_t i = 0; i < kMachineLanes; ++i) {
      LaneState& lane = rank.lanes[i];
      if (!lane.running) continue;
      const bool ends = seconds_until(lane, speed[i]) <= span;
      double& left = lane.overhead_left > 0 ? lane.overhead_left : lane.work_left;
      // Exactly 0 for the lane whose event this is: a rounding remainder would be an event of its
      // own.
      left = ends ? 0 : std::max(0.0, left - span * speed[i]);
      if (lane.overhead_left > 0 || lane.work_left > 0) continue;
      const OpIndex finished = lane.queue[lane.started - 1];
      lane.running = false;
      lane.ended = now_;
      rank.complete[finished] = true;
      rank.result.ops[finished].end = now_;
    }
  }

  static void account(SimulatedRank& rank, double span) {
    const bool gpu_runs = rank.lanes[index_of(Lane::gpu)].running;
    for (std::size_t i = 0; i < kMachineLanes; ++i) {
      if (!rank.lanes[i].running) continue;
      rank.result.lanes[i].busy += span;
      if (!gpu_runs) rank.result.lanes[i].exposed += span;
    }
  }

  /// The op whose end is this op's start: the one before it in its lane, or a dependency.
  static OpIndex cause_of(const SimulatedRank& rank, OpIndex op) {
    const std::vector<OpIndex>& queue = rank.lanes[index_of(rank.plan->ops[op].lane)].queue;
    const auto place = std::lower_bound(queue.begin(), queue.end(), op);
    const double start = rank.result.ops[op].start;
    if (place != queue.begin() && rank.result.ops[*(place - 1)].end >= start) return *(place - 1);
    for (const OpIndex dependency : rank.plan->dependencies_of(rank.plan->ops[op])) {
      if (rank.result.ops[dependency].end >= start) return dependency;
    }
    return op;  // nothing: it started with the step
  }

  static void trace_critical_path(SimulatedRank& rank) {
    const std::vector<Op>& ops = rank.plan->ops;
    Prediction& result = rank.result;
    if (ops.empty()) return;
    OpIndex op = 0;
    for (OpIndex i = 1; i < ops.size(); ++i) {
      const bool later = result.ops[i].end > result.ops[op].end;
      const bool same = result.ops[i].end >= result.ops[op].end;
      if (later || (same && ops[i].lane < ops[op].lane)) op = i;
    }
    for (;;) {
      const OpTiming& timing = result.ops[op];
      result.lanes[index_of(ops[op].lane)].critical += timing.end - timing.start;
      const OpIndex cause = cause_of(rank, op);
      if (cause == op) break;
      op = cause;
    }
    const auto longest = std::max_element(
        result.lanes.begin(), result.lanes.end(),
        [](const LaneUse& a, const LaneUse& b) { return a.critical < b.critical; });
    result.bounding = static_cast<Lane>(longest - result.lanes.begin());
  }

  const MachineProfile& profile_;
  std::array<SharedResource, 2> shared_;
  std::array<double, kMachineLanes> core_shares_;
  const double limit_;  ///< seconds beyond which nobody asks
  std::vector<SimulatedRank> ranks_;
  double now_ = 0;
};

}  // namespace

namespace {

double rate_of(const MachineProfile& profile, RankGroup group) {
  switch (group) {
    case RankGroup::job:
    case RankGroup::replicas:
    case RankGroup::stages: break;
    case RankGroup::node: return node_rate(profile);
    case RankGroup::tensor: return tensor_rate(profile);
  }
  return profile.net;
}

}  // namespace

double work_seconds(const MachineProfile& profile, const Op& op) {
  if (op.held) return 0;
  const auto bytes = static_cast<double>(op.bytes.value());
  const auto checksummed = static_cast<double>(op.checksummed.value());
  switch (op.lane) {
    case Lane::gpu: {
      const double memory = profile.gpu_update > 0 ? bytes / profile.gpu_update : 0;
      return std::max(seconds_of(op.flops, profile.gpu_flops, "gpu_flops"), memory);
    }
    case Lane::h2d: return seconds_of(bytes, profile.h2d, "h2d");
    case Lane::d2h: return seconds_of(bytes, profile.d2h, "d2h");
    case Lane::cpu:
      return seconds_of(bytes, profile.update, "update") +
             seconds_where_known(checksummed, profile.disk.checksum);
    case Lane::net: return seconds_of(bytes, rate_of(profile, op.group), "net");
    case Lane::nvme_read: return seconds_of(bytes, profile.nvme_read, "nvme_read");
    case Lane::nvme_write:
      if (op.kind == OpKind::commit) return profile.disk.commit_seconds;
      return seconds_of(bytes, profile.nvme_write, "nvme_write");
    case Lane::external: break;  // what others compute, nobody here can tell
  }
  return 0;
}

Prediction simulate(const StepPlan& plan, const MachineProfile& profile) {
  const std::array plans{&plan};
  return std::move(Simulation(plans, profile).run().front());
}

std::optional<Prediction> simulate_within(const StepPlan& plan, const MachineProfile& profile,
                                          double seconds) {
  const std::array plans{&plan};
  std::vector<Prediction> results = Simulation(plans, profile, seconds).run();
  if (results.empty() || results.front().step_seconds > seconds) return std::nullopt;
  return std::move(results.front());
}

std::vector<Prediction> simulate_stages(std::span<const StepPlan> stages,
                                        const MachineProfile& profile) {
  std::vector<const StepPlan*> plans;
  for (const StepPlan& stage : stages) plans.push_back(&stage);
  return Simulation(plans, profile).run();
}

}  // namespace spillway::plan
