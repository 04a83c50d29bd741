#include "tools/cli/picture/step_picture.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "runtime/plan/predict/simulator.hpp"
#include "runtime/plan/step/step_builder.hpp"
#include "tools/cli/picture/memory_use.hpp"
#include "tools/cli/plan_text.hpp"

namespace spillway::cli {
namespace {

using nlohmann::ordered_json;
using plan::Lane;

/// Bars that are closer than this part of a step look like one.
constexpr double kResolution = 1.0 / 3000;
/// Steps of more ops are not simulated again with other numbers.
constexpr std::size_t kMostOps = 500'000;

std::vector<Bar> bars_of(const plan::StepPlan& step, std::span<const plan::OpTiming> timings,
                         Lane lane) {
  std::vector<Bar> bars;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    if (step.ops[i].lane != lane || timings[i].end <= 0) continue;
    bars.push_back(
        {.name = plan::name_of(step.ops[i]), .start = timings[i].start, .end = timings[i].end});
  }
  return bars;
}

/// Seconds of each lane's work with a number of rounds, and what another round adds. A step of one
/// round is not like others, which add gradients up.
struct Growth {
  double rounds = 0;
  std::array<double, plan::kMachineLanes> busy{}, a_round{};
};

/// Returns nothing where other rounds would need another placement.
std::optional<Growth> growth_of(const engine::Planned& planned, const plan::StepPlan& step) {
  if (planned.workload.stage.count > 1 || step.ops.size() > kMostOps) return std::nullopt;
  plan::Workload workload = planned.workload;
  const bool is_predicted = !planned.prediction.ops.empty();
  const auto lanes_with = [&](std::uint32_t rounds) {
    // To make the list of a large model takes longer than to simulate it.
    if (is_predicted && rounds == planned.workload.rounds) return planned.prediction.lanes;
    workload.rounds = rounds;
    return plan::simulate(plan::build_training_step(workload, planned.placement), planned.profile)
        .lanes;
  };
  const std::uint32_t rounds = std::max(workload.rounds, 2U);
  const auto before = lanes_with(rounds);
  const auto after = lanes_with(rounds + 1);
  Growth growth{.rounds = static_cast<double>(rounds)};
  for (std::size_t lane = 0; lane < plan::kMachineLanes; ++lane) {
    growth.busy[lane] = before[lane].busy;
    growth.a_round[lane] = after[lane].busy - before[lane].busy;
  }
  return growth;
}

/// Tokens a step from which on the lane's work is no longer than the device's: null if there is no
/// such number.
ordered_json tokens_to_hide(std::size_t lane, const Growth& growth,
                            const plan::Workload& workload) {
  constexpr auto kGpu = static_cast<std::size_t>(Lane::gpu);
  const double excess = growth.busy[lane] - growth.busy[kGpu];
  const double gained = growth.a_round[kGpu] - growth.a_round[lane];
  if (gained <= 0) return nullptr;
  const double rounds = std::max(1.0, std::ceil(growth.rounds + excess / gained));
  return static_cast<std::uint64_t>(rounds) * plan::tokens_of_step(workload) / workload.rounds;
}

ordered_json lanes_of(const engine::Planned& planned, const plan::StepPlan& step,
                      const plan::Prediction& prediction) {
  const auto growth = growth_of(planned, step);
  ordered_json lanes = ordered_json::array();
  for (std::size_t index = 0; index < plan::kMachineLanes; ++index) {
    const plan::LaneUse& use = prediction.lanes[index];
    const auto lane = static_cast<Lane>(index);
    const std::vector<Bar> bars =
        joined(bars_of(step, prediction.ops, lane), prediction.step_seconds);
    if (bars.empty()) continue;
    ordered_json& entry = lanes.emplace_back(ordered_json{
        {"lane", plan::name_of(lane)},
        {"shown", shown_name(lane, planned.device())},
        {"busy_seconds", use.busy},
        {"exposed_seconds", use.exposed},
        {"critical_seconds", use.critical},
    });
    const bool hidden = use.busy <= prediction[Lane::gpu].busy;
    if (hidden && lane != Lane::gpu) {
      entry["tokens_to_hide"] = plan::tokens_of_step(planned.workload);
    } else if (growth && lane != Lane::gpu) {
      entry["tokens_to_hide"] = tokens_to_hide(index, *growth, planned.workload);
    }
    entry["bars"] = to_json(bars);
  }
  return lanes;
}

ordered_json kinds_of(const plan::StepPlan& step, const plan::Prediction& prediction) {
  std::map<std::string_view, std::pair<double, std::uint64_t>> kinds;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    auto& [seconds, ops] = kinds[plan::name_of(step.ops[i])];
    seconds += prediction.ops[i].end - prediction.ops[i].start;
    ++ops;
  }
  ordered_json document = ordered_json::object();
  for (const auto& [name, kind] : kinds) {
    document[std::string(name)] = {{"seconds", kind.first}, {"ops", kind.second}};
  }
  return document;
}

/// A resource, and the profile of a machine that has twice of it.
struct Doubled {
  std::string_view what;
  void (*apply)(plan::MachineProfile&);
};
constexpr std::array kDoubled{
    Doubled{"compute of FWD-BWD", [](plan::MachineProfile& p) { p.gpu_flops *= 2; }},
    Doubled{"the link",
            [](plan::MachineProfile& p) {
              p.h2d *= 2;
              p.d2h *= 2;
              p.h2d_d2h_combined *= 2;
            }},
    Doubled{"the update on the CPU", [](plan::MachineProfile& p) { p.update *= 2; }},
    Doubled{"the disk",
            [](plan::MachineProfile& p) {
              p.nvme_read *= 2;
              p.nvme_write *= 2;
              p.nvme_combined *= 2;
            }},
    Doubled{"the network",
            [](plan::MachineProfile& p) {
              p.net *= 2;
              p.net_node *= 2;
              p.net_tensor *= 2;
            }},
};

ordered_json doubling_of(const engine::Planned& planned, const plan::StepPlan& step) {
  ordered_json rows = ordered_json::array();
  if (planned.workload.stage.count > 1 || step.ops.size() > kMostOps) return rows;
  for (const Doubled& doubled : kDoubled) {
    plan::MachineProfile profile = planned.profile;
    doubled.apply(profile);
    rows.push_back(
        {{"what", doubled.what}, {"step_seconds", plan::simulate(step, profile).step_seconds}});
  }
  return rows;
}

}  // namespace

std::vector<Bar> joined(std::vector<Bar> bars, double seconds) {
  std::ranges::stable_sort(bars, {}, &Bar::start);
  const double gap = seconds * kResolution;
  std::vector<Bar> result;
  for (const Bar& bar : bars) {
    if (!result.empty() && result.back().name == bar.name && bar.start - result.back().end < gap) {
      result.back().end = std::max(result.back().end, bar.end);
      result.back().ops += bar.ops;
    } else {
      result.push_back(bar);
    }
  }
  return result;
}

ordered_json to_json(std::span<const Bar> bars) {
  ordered_json rows = ordered_json::array();
  for (const Bar& bar : bars) rows.push_back({bar.name, bar.start, bar.end, bar.ops});
  return rows;
}

ordered_json step_picture(const engine::Planned& planned, const plan::StepPlan& step) {
  // The prediction of a run is that of this step, but where a run records every step.
  const plan::Prediction prediction = planned.prediction.ops.size() == step.ops.size()
                                          ? planned.prediction
                                          : plan::simulate(step, planned.profile);
  return {{"step_seconds", prediction.step_seconds},
          {"bounding_lane", plan::name_of(prediction.bounding)},
          {"lanes", lanes_of(planned, step, prediction)},
          {"kinds", kinds_of(step, prediction)},
          {"memory", memory_use(planned, step, prediction)},
          {"doubling", doubling_of(planned, step)}};
}

}  // namespace spillway::cli
