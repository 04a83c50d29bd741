// What is shown of the grids that `spillway plan --auto` has ranked.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "tools/cli/grid_plan.hpp"

namespace spillway::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kShownGrids = 12;
constexpr double kGiga = 1e9;

constexpr std::string_view kHeader =
    "                                                                     per cent of a step:\n"
    "tensor  data  pipe  cut          ZeRO  saved         GB  s a step MFU %   "
    "compu again tenso  data bubble update   bound by\n";

/// Returns whether a run can be cut so; other cuts are formulas alone.
bool runs(const plan::TensorCut& cut) { return cut.ranks() == 1; }

std::string cut_text(const plan::TensorCut& cut) {
  if (cut.ranks() == 1) return "-";
  std::string text{plan::name_of(cut.method)};
  if (cut.method == plan::TensorMethod::layered) {
    text += fmt::format(" q={} d={}", cut.side, cut.depth);
  }
  return text;
}

std::string percent(double part, double whole) { return fmt::format("{:.1f}", 100 * part / whole); }

std::string row(const MadeGrids& made, const plan::RankedGrid& grid) {
  const auto& [cut, replicas, stages, zero, keeps] = grid.choice;
  const plan::GridSeconds& s = grid.seconds;
  const double step = s.step();
  return fmt::format(
      "{:>6} {:>5} {:>5}  {:<12} {:>4}  {:<9} {:>6.1f} {:>9.3f} {:>5}   {:>5} {:>5} {:>5} {:>5} "
      "{:>6} {:>6}   {}, then {}\n",
      cut.ranks(), replicas, stages, cut_text(cut), zero, keeps ? "kept" : "recompute",
      grid.memory.total() / kGiga, step, made.peak_flops > 0 ? percent(made.mfu(grid), 1) : "?",
      percent(s.compute, step), percent(s.recompute, step), percent(s.tensor, step),
      percent(s.data, step), percent(s.bubble, step), percent(s.update, step), s.bound(),
      s.largest_loss());
}

/// A line for each grid that does not fit, and one for those that do not divide the work.
std::string dropped_lines(const std::vector<plan::DroppedGrid>& dropped) {
  std::string text;
  std::size_t undivided = 0;
  for (const plan::DroppedGrid& grid : dropped) {
    undivided += grid.bytes == 0 ? 1 : 0;
    if (grid.bytes == 0) continue;
    const plan::GridChoice& choice = grid.choice;
    text += fmt::format("dropped    tensor {} x data {} x pipe {}: {}\n", choice.cut.ranks(),
                        choice.replicas, choice.stages, grid.reason);
  }
  if (undivided == 0) return text;
  return text + fmt::format("dropped    {} grids that do not divide the work; --json says why\n",
                            undivided);
}

ordered_json to_json(const plan::TensorCut& cut) {
  return {{"method", plan::name_of(cut.method)},
          {"ranks", cut.ranks()},
          {"side", cut.side},
          {"depth", cut.depth},
          {"on_paper", !runs(cut)}};
}

ordered_json to_json(const plan::GridChoice& choice) {
  return {{"tensor", to_json(choice.cut)},
          {"data", choice.replicas},
          {"pipeline", choice.stages},
          {"zero_stage", choice.zero_stage},
          {"activations", choice.keeps_activations ? "kept" : "recomputed"}};
}

ordered_json to_json(const MadeGrids& made, const plan::RankedGrid& grid) {
  ordered_json document = to_json(grid.choice);
  const plan::GridMemory& m = grid.memory;
  const plan::GridSeconds& s = grid.seconds;
  document["memory"] = {{"bytes", m.total()},           {"parameters", m.parameters},
                        {"gradients", m.gradients},     {"state", m.state},
                        {"activations", m.activations}, {"workspace", m.workspace}};
  document["seconds"] = {{"step", s.step()},   {"compute", s.compute}, {"recompute", s.recompute},
                         {"tensor", s.tensor}, {"data", s.data},       {"bubble", s.bubble},
                         {"update", s.update}};
  document["bound"] = s.bound();
  document["largest_loss"] = s.largest_loss();
  document["tokens_per_second"] = static_cast<double>(made.windows * made.context) / s.step();
  if (made.peak_flops > 0) document["mfu"] = made.mfu(grid);
  return document;
}

/// What each cut among as many ranks as the first grid's would send for a layer.
ordered_json cuts_of_layer(const MadeGrids& made) {
  const plan::Workload& w = made.work.workload;
  ordered_json cuts = ordered_json::array();
  for (const plan::TensorCut& cut :
       plan::cuts_among(made.ranking.fitting.front().choice.cut.ranks())) {
    const plan::SentElements sent =
        plan::sent_by_layer(cut, made.work.shape, static_cast<double>(w.tokens));
    ordered_json document = to_json(cut);
    const auto bytes = static_cast<double>(size_of(w.compute));
    document["bytes_sent_forward"] = sent.forward * bytes;
    document["bytes_sent_backward"] = sent.backward * bytes;
    cuts.push_back(document);
  }
  return cuts;
}

}  // namespace

std::string to_text(const MadeGrids& made) {
  std::string text = fmt::format(
      "machine    {} ({})\n"
      "step       {} windows of {} tokens on {} ranks, micro-batches of {}\n"
      "on paper   closed formulas: nothing was measured. Parameters, gradients and state are on\n"
      "           the devices. This version cuts no matrices among ranks (tensor above 1).\n"
      "rates      {:.0f} TFLOP/s of each GPU; {:.0f} GB/s inside a machine, {:.0f} GB/s "
      "between\n\n",
      made.machine, made.basis, made.windows, made.context, made.ranks, made.micro_batch,
      made.rates.flops * 1e-12, made.rates.inside / kGiga, made.rates.between / kGiga);
  text += kHeader;
  const auto& fitting = made.ranking.fitting;
  for (std::size_t i = 0; i < std::min(fitting.size(), kShownGrids); ++i) {
    text += row(made, fitting[i]);
  }
  if (fitting.size() > kShownGrids) {
    text +=
        fmt::format("... and {} more that fit; --json has them\n", fitting.size() - kShownGrids);
  }
  return text + dropped_lines(made.ranking.dropped);
}

nlohmann::ordered_json to_json(const MadeGrids& made) {
  ordered_json document{{"kind", "estimate"},
                        {"machine", made.machine},
                        {"basis", made.basis},
                        {"ranks", made.ranks},
                        {"windows", made.windows},
                        {"context", made.context},
                        {"micro_batch", made.micro_batch},
                        {"gpu_flops", made.rates.flops},
                        {"device_memory", made.rates.device.value()}};
  document["grids"] = ordered_json::array();
  for (const plan::RankedGrid& grid : made.ranking.fitting) {
    document["grids"].push_back(to_json(made, grid));
  }
  document["cuts_of_a_layer"] = cuts_of_layer(made);
  document["dropped"] = ordered_json::array();
  for (const plan::DroppedGrid& grid : made.ranking.dropped) {
    ordered_json dropped = to_json(grid.choice);
    dropped["reason"] = grid.reason;
    document["dropped"].push_back(dropped);
  }
  return document;
}

}  // namespace spillway::cli
