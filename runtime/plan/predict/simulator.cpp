#include "runtime/plan/predict/simulator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

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

std::array<SharedResource, 3> shared_resources(const MachineProfile& profile) {
  return {{{Lane::h2d, Lane::d2h, kept_rate(profile.h2d_d2h_combined, profile.h2d, profile.d2h)},
           {Lane::nvme_read, Lane::nvme_write,
            kept_rate(profile.nvme_combined, profile.nvme_read, profile.nvme_write)},
           {Lane::gpu, Lane::cpu, profile.cpu_shares_gpu ? 0.5 : 1.0}}};
}

/// A lane's queue and the op that it runs.
struct LaneState {
  std::vector<OpIndex> queue;
  std::size_t started = 0;             ///< ops of the queue that have started
  std::uint32_t dependencies_met = 0;  ///< of the next op, leading ones only
  bool running = false;
  double overhead_left = 0;
  double work_left = 0;  ///< in seconds at full rate

  [[nodiscard]] bool working() const { return running && overhead_left <= 0 && work_left > 0; }
};

class Simulation {
 public:
  Simulation(const StepPlan& plan, const MachineProfile& profile)
      : plan_(plan),
        profile_(profile),
        shared_(shared_resources(profile)),
        complete_(plan.ops.size(), false) {
    result_.ops.resize(plan.ops.size());
    for (OpIndex i = 0; i < plan.ops.size(); ++i) {
      check_op(i);
      lanes_[index_of(plan.ops[i].lane)].queue.push_back(i);
    }
  }

  Prediction run() {
    for (start_ready(); anything_runs(); start_ready()) advance();
    for (const LaneState& lane : lanes_) SPILLWAY_ASSERT(lane.started == lane.queue.size());
    result_.step_seconds = now_;
    result_.gpu_idle = now_ - result_[Lane::gpu].busy;
    trace_critical_path();
    return std::move(result_);
  }

 private:
  void check_op(OpIndex i) const {
    const Op& op = plan_.ops[i];
    if (index_of(op.lane) >= kMachineLanes) refuse(fmt::format("op {} names no lane", i));
    const std::uint64_t end = std::uint64_t{op.first_dependency} + op.dependency_count;
    if (end > plan_.dependencies.size()) {
      refuse(fmt::format("op {} has dependencies beyond the list", i));
    }
    for (const OpIndex dependency : plan_.dependencies_of(op)) {
      if (dependency < i) continue;
      refuse(fmt::format("op {} depends on op {}, which does not stand before it", i, dependency));
    }
  }

  /// Formats nothing as long as nothing is wrong, unlike the argument of `check`.
  [[noreturn]] static void refuse(const std::string& what) {
    throw Error(ErrorCode::invalid_argument, what);
  }

  void start_ready() {
    for (LaneState& lane : lanes_) {
      if (lane.running || lane.started == lane.queue.size()) continue;
      const OpIndex next = lane.queue[lane.started];
      const auto dependencies = plan_.dependencies_of(plan_.ops[next]);
      while (lane.dependencies_met < dependencies.size() &&
             complete_[dependencies[lane.dependencies_met]]) {
        ++lane.dependencies_met;
      }
      if (lane.dependencies_met < dependencies.size()) continue;
      lane.running = true;
      lane.overhead_left = profile_.op_overhead_seconds;
      lane.work_left = work_seconds(profile_, plan_.ops[next]);
      lane.dependencies_met = 0;
      ++lane.started;
      result_.ops[next].start = now_;
    }
  }

  [[nodiscard]] bool anything_runs() const {
    return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane.running; });
  }

  /// Runs until the next op ends or passes from overhead to work.
  void advance() {
    std::array<double, kMachineLanes> speed;
    speed.fill(1);
    for (const SharedResource& shared : shared_) {
      const std::size_t first = index_of(shared.first);
      const std::size_t second = index_of(shared.second);
      if (!lanes_[first].working() || !lanes_[second].working()) continue;
      speed[first] = speed[second] = shared.kept;
    }
    std::array<double, kMachineLanes> until{};
    double span = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < kMachineLanes; ++i) {
      const LaneState& lane = lanes_[i];
      if (!lane.running) continue;
      until[i] = lane.overhead_left > 0 ? lane.overhead_left : lane.work_left / speed[i];
      span = std::min(span, until[i]);
    }
    now_ += span;
    account(span);
    for (std::size_t i = 0; i < kMachineLanes; ++i) {
      LaneState& lane = lanes_[i];
      if (!lane.running) continue;
      double& left = lane.overhead_left > 0 ? lane.overhead_left : lane.work_left;
      // Exactly 0 for the lane whose event this is: a rounding remainder would be an event of its
      // own.
      left = until[i] <= span ? 0 : std::max(0.0, left - span * speed[i]);
      if (lane.overhead_left > 0 || lane.work_left > 0) continue;
      const OpIndex finished = lane.queue[lane.started - 1];
      lane.running = false;
      complete_[finished] = true;
      result_.ops[finished].end = now_;
    }
  }

  void account(double span) {
    const bool gpu_runs = lanes_[index_of(Lane::gpu)].running;
    for (std::size_t i = 0; i < kMachineLanes; ++i) {
      if (!lanes_[i].running) continue;
      result_.lanes[i].busy += span;
      if (!gpu_runs) result_.lanes[i].exposed += span;
    }
  }

  /// The op whose end is this op's start: the one before it in its lane, or a dependency.
  [[nodiscard]] OpIndex cause_of(OpIndex op) const {
    const std::vector<OpIndex>& queue = lanes_[index_of(plan_.ops[op].lane)].queue;
    const auto place = std::lower_bound(queue.begin(), queue.end(), op);
    const double start = result_.ops[op].start;
    if (place != queue.begin() && result_.ops[*(place - 1)].end >= start) return *(place - 1);
    for (const OpIndex dependency : plan_.dependencies_of(plan_.ops[op])) {
      if (result_.ops[dependency].end >= start) return dependency;
    }
    return op;  // nothing: it started with the step
  }

  void trace_critical_path() {
    if (plan_.ops.empty()) return;
    OpIndex op = 0;
    for (OpIndex i = 1; i < plan_.ops.size(); ++i) {
      const bool later = result_.ops[i].end > result_.ops[op].end;
      const bool same = result_.ops[i].end >= result_.ops[op].end;
      if (later || (same && plan_.ops[i].lane < plan_.ops[op].lane)) op = i;
    }
    for (;;) {
      const OpTiming& timing = result_.ops[op];
      result_.lanes[index_of(plan_.ops[op].lane)].critical += timing.end - timing.start;
      const OpIndex cause = cause_of(op);
      if (cause == op) break;
      op = cause;
    }
    const auto longest = std::max_element(
        result_.lanes.begin(), result_.lanes.end(),
        [](const LaneUse& a, const LaneUse& b) { return a.critical < b.critical; });
    result_.bounding = static_cast<Lane>(longest - result_.lanes.begin());
  }

  const StepPlan& plan_;
  const MachineProfile& profile_;
  std::array<SharedResource, 3> shared_;
  std::array<LaneState, kMachineLanes> lanes_;
  std::vector<bool> complete_;
  double now_ = 0;
  Prediction result_;
};

}  // namespace

double work_seconds(const MachineProfile& profile, const Op& op) {
  if (op.held) return 0;
  const auto bytes = static_cast<double>(op.bytes.value());
  switch (op.lane) {
    case Lane::gpu: {
      const double memory = profile.gpu_update > 0 ? bytes / profile.gpu_update : 0;
      return std::max(seconds_of(op.flops, profile.gpu_flops, "gpu_flops"), memory);
    }
    case Lane::h2d: return seconds_of(bytes, profile.h2d, "h2d");
    case Lane::d2h: return seconds_of(bytes, profile.d2h, "d2h");
    case Lane::cpu: return seconds_of(bytes, profile.update, "update");
    case Lane::net:
      return seconds_of(bytes, op.group == RankGroup::node ? node_rate(profile) : profile.net,
                        "net");
    case Lane::nvme_read: return seconds_of(bytes, profile.nvme_read, "nvme_read");
    case Lane::nvme_write: return seconds_of(bytes, profile.nvme_write, "nvme_write");
    case Lane::external: break;  // what others compute, nobody here can tell
  }
  return 0;
}

Prediction simulate(const StepPlan& plan, const MachineProfile& profile) {
  return Simulation(plan, profile).run();
}

}  // namespace spillway::plan
