#include "tools/cli/plan_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

namespace spillway::cli {

using nlohmann::ordered_json;
using plan::Lane;
using plan::Tier;

namespace {

constexpr std::array<Tier, 3> kTiers{Tier::device, Tier::host, Tier::nvme};

std::string_view saved_in(const plan::BlockCut& cut) {
  return cut.saved ? plan::name_of(*cut.saved) : "recomputed";
}

std::uint64_t parameters(const plan::Workload& workload) {
  std::uint64_t sum = 0;
  for (const plan::BlockShape& block : workload.blocks) sum += block.parameters.value();
  return sum;
}

template <class Predicate>
std::size_t count(const plan::Placement& placement, Predicate predicate) {
  return static_cast<std::size_t>(
      std::count_if(placement.blocks.begin(), placement.blocks.end(), predicate));
}

bool sums_rounds_on_device(const plan::Workload& workload, const plan::Placement& placement,
                           std::size_t block) {
  return workload.sums_gradients() && placement.blocks[block].gradients == Tier::device;
}

/// Blocks in each home, as one line.
std::string placement_line(const plan::Workload& workload, const plan::Placement& placement) {
  const auto state_in = [&](Tier tier) {
    return count(placement, [&](const plan::BlockCut& b) { return b.state == tier; });
  };
  const auto output_in = [&](Tier tier) {
    return count(placement, [&](const plan::BlockCut& b) { return b.output == tier; });
  };
  std::size_t sums_on_device = 0;
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
    sums_on_device += sums_rounds_on_device(workload, placement, b);
  }
  const std::size_t on_disk =
      count(placement, [](const plan::BlockCut& b) { return b.saved == Tier::nvme; });
  return fmt::format(
      "{} blocks: {} resident, {} streamed; {} keep activations, {} of them on the host{}; state: "
      "{} "
      "device, {} host, {} nvme; their outputs: {} device, {} host, {} nvme; {} sum rounds on the "
      "device",
      placement.blocks.size(),
      count(placement, [](const plan::BlockCut& b) { return b.resident(); }),
      count(placement, [](const plan::BlockCut& b) { return !b.resident(); }),
      count(placement, [](const plan::BlockCut& b) { return b.saved.has_value(); }),
      count(placement, [](const plan::BlockCut& b) { return b.saved == Tier::host; }),
      on_disk > 0 ? fmt::format(" and {} on nvme", on_disk) : "", state_in(Tier::device),
      state_in(Tier::host), state_in(Tier::nvme), output_in(Tier::device), output_in(Tier::host),
      output_in(Tier::nvme), sums_on_device);
}

std::string_view meaning_of(plan::Sharding sharding) {
  switch (sharding) {
    case plan::Sharding::none: return "each holds everything (stage 0)";
    case plan::Sharding::state: return "state and gradients are sharded (stages 1 and 2)";
    case plan::Sharding::parameters: return "parameters are sharded too (stage 3)";
  }
  return "";
}

ordered_json stage_json(const engine::Planned& planned) {
  const plan::Stage& stage = planned.workload.stage;
  ordered_json document{{"index", planned.place.stage()},
                        {"count", stage.count},
                        {"rounds_in_flight", stage.in_flight}};
  for (const plan::BlockRange& range : stage.chunks) {
    document["layers"].push_back({range.first, range.end - 1});
  }
  return document;
}

std::string share_text(const engine::ShownShare& share) {
  std::string text = fmt::format("{} thread(s)", share.threads);
  if (share.cores > 0) {
    text = fmt::format("{} core(s) of node {}", share.cores, fmt::join(share.nodes, ", "));
  }
  if (!share.bound) text += ", not bound";
  if (!share.gpu.empty()) text += fmt::format("; GPU {}", share.gpu);
  return text + fmt::format("; state in {}", fmt::join(share.state, ", "));
}

/// The ranks of this one's machine. Documents have those of all machines.
std::string share_lines(const std::vector<engine::ShownShare>& shares) {
  std::string text;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    if (shares[rank].machine != shares.front().machine) continue;
    text += fmt::format("{:<10} rank {}: {}\n", text.empty() ? "places" : "", rank,
                        share_text(shares[rank]));
  }
  return text;
}

ordered_json to_json(const engine::ShownShare& share) {
  ordered_json document{{"machine", share.machine}, {"nodes", share.nodes},
                        {"cores", share.cores},     {"bound", share.bound},
                        {"threads", share.threads}, {"state", share.state}};
  if (!share.gpu.empty()) document["gpu"] = share.gpu;
  return document;
}

ordered_json to_json(const engine::PricedShape& priced) {
  return {{"rounds", priced.shape.rounds},
          {"train_micro_batch_size_per_gpu", priced.shape.micro_batch},
          {"gradient_accumulation_steps", priced.shape.accumulation},
          {"step_seconds", priced.step_seconds}};
}

/// The band of a prediction by a machine that was measured.
std::string band_text(const plan::Prediction& prediction) {
  if (prediction.slow_seconds <= prediction.fast_seconds) return "";  // measured once, or not
  return fmt::format(" ({:.4f} to {:.4f})", prediction.fast_seconds, prediction.slow_seconds);
}

std::string more_seconds(double seconds) { return fmt::format("{:.4f} s", seconds); }

/// Returns what the other cut has elsewhere.
std::string elsewhere(const plan::BlockCut& cut, const plan::BlockCut& other) {
  std::string text;
  const auto say = [&](std::string_view what, std::string_view now, std::string_view then) {
    if (now == then) return;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, then);
  };
  say("parameters", plan::name_of(cut.parameters), plan::name_of(other.parameters));
  say("gradients", plan::name_of(cut.gradients), plan::name_of(other.gradients));
  say("state", plan::name_of(cut.state), plan::name_of(other.state));
  say("saved", saved_in(cut), saved_in(other));
  say("output", plan::name_of(cut.output), plan::name_of(other.output));
  return text;
}

/// Returns why the next best cut was not chosen.
std::string reason(const PlanView& view, const plan::NextBest& next) {
  if (next.lacks) {
    return fmt::format("does not fit, {} of {} are missing",
                       format_bytes(next.lacks->needed - next.lacks->budget),
                       plan::name_of(next.lacks->tier));
  }
  const double more = next.step_seconds - view.plan.prediction.step_seconds;
  std::string text =
      fmt::format("{} by {} a step", more > 0 ? "slower" : "faster", more_seconds(std::abs(more)));
  if (next.busier_seconds > 0) {
    text += fmt::format(", {} works {} longer", shown_name(next.busier, view.plan.device()),
                        more_seconds(next.busier_seconds));
  }
  return text;
}

/// Whether a step with the cut takes another time than the plan's, as far as predictions are exact.
bool differs(const PlanView& view, const plan::NextBest& next) {
  const double seconds = view.plan.prediction.step_seconds;
  const auto [less, more] = std::minmax(seconds, next.step_seconds);
  return next.lacks.has_value() || less < plan::kWorthwhile * more;
}

std::string cut_lines(const PlanView& view) {
  std::string text;
  std::string_view title = "cut";
  for (const plan::CutReport& cut : view.cuts) {
    const std::string kind = fmt::format(
        "{}{}", cut.kind, cut.blocks > 1 ? fmt::format(" ({} blocks)", cut.blocks) : "");
    text += fmt::format("{:<10} {}: update {}; {}; {} over the link\n", title, kind,
                        shown_name(cut.cut.updated_by(), view.plan.device()), cut.text,
                        format_bytes(cut.link));
    title = "";
    if (!cut.next || !differs(view, *cut.next)) continue;
    text += fmt::format("{:<10}   next best, {}: {}\n", "", elsewhere(cut.cut, cut.next->cut),
                        reason(view, *cut.next));
  }
  return text;
}

ordered_json to_json(const plan::BlockCut& cut) {
  return {{"update", plan::name_of(cut.updated_by())},
          {"parameters", plan::name_of(cut.parameters)},
          {"gradients", plan::name_of(cut.gradients)},
          {"state", plan::name_of(cut.state)},
          {"saved", saved_in(cut)},
          {"output", plan::name_of(cut.output)}};
}

ordered_json to_json(const plan::NextBest& next) {
  ordered_json document = to_json(next.cut);
  if (next.lacks) {
    document["lacks"] = {{"tier", plan::name_of(next.lacks->tier)},
                         {"bytes", (next.lacks->needed - next.lacks->budget).value()}};
    return document;
  }
  document["step_seconds"] = next.step_seconds;
  document["busier_lane"] = plan::name_of(next.busier);
  document["busier_seconds"] = next.busier_seconds;
  return document;
}

}  // namespace

Bytes budget_of(const plan::Budgets& budgets, Tier tier) {
  return tier == Tier::device ? budgets.device : tier == Tier::host ? budgets.host : budgets.nvme;
}

std::string_view shown_name(Lane lane, config::DeviceKind device) {
  const bool no_gpu = lane == Lane::gpu && device == config::DeviceKind::host;
  return no_gpu ? "device" : plan::name_of(lane);
}

std::string shown_rate(double tokens_per_second) {
  return tokens_per_second < 100 ? fmt::format("{:.3g} tokens/s", tokens_per_second)
                                 : fmt::format("{:.0f} tokens/s", tokens_per_second);
}

std::string to_text(const PlanView& view) {
  std::string text;
  const auto out = std::back_inserter(text);
  const plan::Workload& w = view.plan.workload;
  fmt::format_to(out, "model      {:.2f} M parameters, {} compute on {}, state format {}\n",
                 static_cast<double>(parameters(w)) / 1e6, name_of(w.compute),
                 view.plan.device() == config::DeviceKind::cuda ? "a GPU" : "the CPU",
                 name_of(view.plan.placement.format));
  fmt::format_to(out, "step       {} tokens: {} round(s) of {} micro-batch(es) of {}\n",
                 plan::tokens_of_step(w), w.rounds, w.micro_batches, w.tokens);
  for (const RankLine& line : rank_lines(view.plan)) {
    fmt::format_to(out, "{:<10} {}\n", line.title, line.text);
  }
  text += share_lines(view.shares);
  fmt::format_to(out, "placement  {}\n", placement_line(w, view.plan.placement));
  text += cut_lines(view);
  const std::vector<plan::MemoryItem> memory = view.plan.memory();
  for (const Tier tier : kTiers) {
    const Bytes limit = budget_of(view.plan.budgets, tier);
    fmt::format_to(out, "{:<10} {}{}\n", plan::name_of(tier),
                   format_bytes(plan::total(memory, tier)),
                   limit < plan::kUncounted ? fmt::format(" of {}", format_bytes(limit)) : "");
    for (const plan::MemoryItem& item : memory) {
      if (item.tier == tier) {
        fmt::format_to(out, "    {:<26} {:>12}\n", item.what, format_bytes(item.bytes));
      }
    }
  }
  fmt::format_to(out, "lanes      {:<12} {:>10} {:>10}\n", "", "busy s", "exposed s");
  for (std::size_t lane = 0; lane < plan::kMachineLanes; ++lane) {
    const plan::LaneUse& use = view.plan.prediction.lanes[lane];
    if (use.busy <= 0) continue;
    fmt::format_to(out, "           {:<12} {:>10.4f} {:>10.4f}\n",
                   shown_name(static_cast<Lane>(lane), view.plan.device()), use.busy, use.exposed);
  }
  fmt::format_to(out, "predicted  {}\n", predicted_text(view.plan));
  if (view.faster) {
    const double seconds = view.plan.prediction.step_seconds;
    fmt::format_to(out,
                   "rounds     spillway.rounds {}: {:.0f} % faster, {:.4f} s a step (gradients are "
                   "rounded once a round)\n",
                   view.faster->rounds, 100 * (seconds / view.faster->step_seconds - 1),
                   view.faster->step_seconds);
  }
  return text;
}

nlohmann::ordered_json to_json(const PlanView& view) {
  nlohmann::ordered_json document;
  document["fits"] = true;
  document["parameters"] = parameters(view.plan.workload);
  document["tokens_per_step"] = plan::tokens_of_step(view.plan.workload);
  const std::vector<plan::MemoryItem> memory = view.plan.memory();
  for (const Tier tier : kTiers) {
    nlohmann::ordered_json& entry = document["memory"][std::string(plan::name_of(tier))];
    entry["bytes"] = plan::total(memory, tier).value();
    entry["budget"] = budget_of(view.plan.budgets, tier).value();
    for (const plan::MemoryItem& item : memory) {
      if (item.tier == tier) entry["items"][item.what] = item.bytes.value();
    }
  }
  document["ranks"] = view.plan.workload.replicas.count;
  if (view.plan.workload.tensor.count > 1)
    document["tensor_ranks"] = view.plan.workload.tensor.count;
  if (view.plan.workload.stage.count > 1) document["stage"] = stage_json(view.plan);
  if (view.plan.workload.gathers())
    document["gathered_ahead"] = view.plan.placement.parameter_slots - 1;
  for (const engine::ShownShare& share : view.shares) {
    document["places"].push_back(to_json(share));
  }
  nlohmann::ordered_json& blocks = document["blocks"];
  for (std::size_t b = 0; b < view.plan.workload.blocks.size(); ++b) {
    const plan::BlockCut& place = view.plan.placement.blocks[b];
    blocks.push_back(
        {{"name", view.plan.workload.blocks[b].name},
         {"parameters", view.plan.workload.blocks[b].parameters.value()},
         {"resident", place.resident()},
         {"keep", place.saved.has_value()},
         {"offload", place.saved && *place.saved != Tier::device},
         {"state", plan::name_of(place.state)},
         {"activations", plan::name_of(place.output)},
         {"sums_on_device", sums_rounds_on_device(view.plan.workload, view.plan.placement, b)}});
  }
  for (const plan::CutReport& cut : view.cuts) {
    ordered_json& entry = document["cuts"].emplace_back(
        ordered_json{{"kind", cut.kind}, {"blocks", cut.blocks}, {"link_bytes", cut.link.value()}});
    entry.update(to_json(cut.cut));
    if (cut.next) entry["next_best"] = to_json(*cut.next);
  }
  for (std::size_t lane = 0; lane < plan::kMachineLanes; ++lane) {
    const plan::LaneUse& use = view.plan.prediction.lanes[lane];
    document["lanes"][std::string(plan::name_of(static_cast<Lane>(lane)))] = {
        {"busy_seconds", use.busy}, {"exposed_seconds", use.exposed}};
  }
  document["step_seconds"] = view.plan.prediction.step_seconds;
  if (view.plan.prediction.slow_seconds > 0) {
    document["step_seconds_band"] = {view.plan.prediction.fast_seconds,
                                     view.plan.prediction.slow_seconds};
  }
  if (view.faster) {
    document["faster_rounds"] = {{"rounds", view.faster->rounds},
                                 {"step_seconds", view.faster->step_seconds}};
  }
  if (const auto& shape = view.plan.shape) {
    document["chosen_shape"] = to_json(shape->chosen);
    if (shape->next) document["chosen_shape"]["next_best"] = to_json(*shape->next);
  }
  document["bounding_lane"] = plan::name_of(view.plan.prediction.bounding);
  document["profile"] = {{"gpu_flops", view.plan.profile.gpu_flops},
                         {"h2d", view.plan.profile.h2d},
                         {"d2h", view.plan.profile.d2h},
                         {"update", view.plan.profile.update},
                         {"net", view.plan.profile.net},
                         {"nvme_read", view.plan.profile.nvme_read},
                         {"nvme_write", view.plan.profile.nvme_write}};
  return document;
}

std::string predicted_text(const engine::Planned& planned) {
  const double seconds = planned.prediction.step_seconds;
  return fmt::format(
      "{:.4f} s a step{}, {}, bounded by {}", seconds, band_text(planned.prediction),
      shown_rate(static_cast<double>(plan::tokens_of_step(planned.workload)) / seconds),
      shown_name(planned.prediction.bounding, planned.device()));
}

std::vector<RankLine> rank_lines(const engine::Planned& planned) {
  const plan::Workload& w = planned.workload;
  std::vector<RankLine> lines;
  if (w.stage.count > 1) lines.push_back({"stage", stage_text(planned)});
  if (w.tensor.count > 1) {
    lines.push_back({"tensor", fmt::format("part {} of {} of every matrix",
                                           planned.place.tensor_index(), w.tensor.count)});
  }
  if (w.replicas.count > 1) {
    const std::uint32_t ahead = planned.placement.parameter_slots - 1;
    lines.push_back(
        {"ranks",
         fmt::format(
             "{}, of which this is one; {}{}", w.replicas.count, meaning_of(w.replicas.sharding),
             w.gathers() ? fmt::format(" and gathered {} block(s) ahead", ahead) : std::string())});
  }
  return lines;
}

std::string stage_text(const engine::Planned& planned) {
  const plan::Stage& stage = planned.workload.stage;
  std::vector<std::string> layers;
  layers.reserve(stage.chunks.size());
  for (const plan::BlockRange& range : stage.chunks) {
    layers.push_back(fmt::format("{} to {}", range.first, range.end - 1));
  }
  const std::string stale =
      planned.workload.stale.stays_full()
          ? fmt::format("; stale weights (other mathematics), {} version(s) beside the newest",
                        planned.workload.stale.versions)
          : "";
  return fmt::format("{} of {}: layers {}; {} round(s) in flight{}", planned.place.stage(),
                     stage.count, fmt::join(layers, ", "), stage.in_flight, stale);
}

}  // namespace spillway::cli
