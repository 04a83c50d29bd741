#include "runtime/plan/placement/update_site.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "runtime/base/error.hpp"
#include "runtime/plan/predict/theory.hpp"

namespace spillway::plan {
namespace {

DataflowGraph block_graph(const UpdateQuestion& question) {
  return fused_pass_graph({.parameters = question.parameters,
                           .format = question.format,
                           .compute = question.compute,
                           .rounds = question.rounds});
}

/// The node that updates: the only computation that may move.
std::uint32_t update_node(const DataflowGraph& graph) {
  const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                  [](const auto& node) { return node.work == Work::model; });
  return static_cast<std::uint32_t>(found - graph.nodes.begin());
}

double seconds_of(double amount, double rate, std::string_view name) {
  if (amount == 0) return 0;
  check(rate > 0, ErrorCode::invalid_argument,
        fmt::format("the machine profile has no rate for {}; measure it again", name));
  return amount / rate;
}

double as_double(Bytes bytes) { return static_cast<double>(bytes.value()); }

BlockSeconds price(const MachineProfile& profile, const UpdateQuestion& question, const Cut& cut,
                   bool update_on_cpu) {
  const double update_bytes = update_traffic_per_parameter(question.format, question.compute) *
                              static_cast<double>(question.parameters.value());
  BlockSeconds seconds{
      .gpu = seconds_of(question.fwd_bwd_flops, profile.gpu_flops, "FWD-BWD"),
      .h2d = seconds_of(as_double(cut.up), profile.h2d, "copies to the device"),
      .d2h = seconds_of(as_double(cut.down), profile.d2h, "copies from the device")};
  if (profile.h2d_d2h_combined > 0) {
    seconds.link = as_double(cut.traffic()) / profile.h2d_d2h_combined;
  }
  if (update_on_cpu) {
    seconds.cpu = seconds_of(update_bytes, profile.update, "the update");
  } else {
    seconds.gpu += seconds_of(update_bytes, profile.gpu_update, "the update on the device");
  }
  const double cores = profile.cpu_shares_gpu ? seconds.gpu + seconds.cpu : seconds.gpu;
  seconds.slowest = std::max({cores, seconds.h2d, seconds.d2h, seconds.link, seconds.cpu});
  return seconds;
}

bool better(const UpdateDecision& a, const UpdateDecision& b) {
  return std::make_tuple(a.seconds.slowest, a.cut.traffic(), b.cut.cpu_bytes, a.cut.cpu) <
         std::make_tuple(b.seconds.slowest, b.cut.traffic(), a.cut.cpu_bytes, b.cut.cpu);
}

}  // namespace

std::string_view name_of(UpdateSite site) {
  switch (site) {
    case UpdateSite::cpu: return "cpu";
    case UpdateSite::gpu_resident: return "gpu_resident";
    case UpdateSite::gpu_streamed: return "gpu_streamed";
  }
  return "?";
}

UpdateDecision decide_update_site(const MachineProfile& profile, const UpdateQuestion& question) {
  const DataflowGraph graph = block_graph(question);
  const std::uint32_t update = update_node(graph);
  const bool gpu_updates = profile.gpu_update > 0;

  const Cut whole = evaluate_cut(graph, 0);
  if (gpu_updates && whole.gpu_bytes <= question.free_device) {
    const Cut cut = partition(graph, {.gpu = question.free_device, .may_stay_whole = true});
    return {UpdateSite::gpu_resident, cut, price(profile, question, cut, false)};
  }
  std::optional<UpdateDecision> best;
  for (const Cut& cut : all_cuts(graph)) {
    const bool update_on_cpu = cut.on_cpu(update);
    if (cut.gpu_bytes > question.free_device || (!update_on_cpu && !gpu_updates)) continue;
    const UpdateDecision candidate{update_on_cpu ? UpdateSite::cpu : UpdateSite::gpu_streamed, cut,
                                   price(profile, question, cut, update_on_cpu)};
    if (!best || better(candidate, *best)) best = candidate;
  }
  SPILLWAY_ASSERT(best.has_value());  // everything but FWD-BWD on the CPU needs no device memory
  return *best;
}

std::string to_text(const UpdateQuestion& question, const UpdateDecision& decision) {
  const BlockSeconds& seconds = decision.seconds;
  return fmt::format("update on {}, {:.3g} s (gpu {:.3g}, h2d {:.3g}, d2h {:.3g}, cpu {:.3g}); {}",
                     name_of(decision.site), seconds.slowest, seconds.gpu, seconds.h2d, seconds.d2h,
                     seconds.cpu, to_text(block_graph(question), decision.cut));
}

}  // namespace spillway::plan
