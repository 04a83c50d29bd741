#include "runtime/plan/pipeline/stages.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/plan/pipeline/stale.hpp"
#include "runtime/plan/pipeline/timeline.hpp"

namespace spillway::plan {
namespace {

double flops_of(const Workload& workload, std::uint32_t layer) {
  const BlockShape& block = workload.blocks[layer];
  return block.forward_flops + block.backward_flops;
}

/// Returns the seconds of each stage's passes, were a FLOP a second.
std::vector<StageSeconds> seconds_of(const Workload& workload, const Pipeline& pipeline,
                                     const std::vector<BlockRange>& parts) {
  std::vector<StageSeconds> seconds(pipeline.stages);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    StageSeconds& stage = seconds[part % pipeline.stages];
    double& forward = stage.forward.emplace_back(1);  // an embedding computes nothing
    double& backward = stage.backward.emplace_back(1);
    for (std::uint32_t layer = parts[part].first; layer < parts[part].end; ++layer) {
      forward += workload.blocks[layer].forward_flops;
      backward += workload.blocks[layer].backward_flops;
    }
  }
  return seconds;
}

/// Number of rounds for which a stage keeps what a tied head adds: made, and not yet sent or, where
/// there is one stage, not yet used.
std::uint32_t tied_in_flight(const std::vector<StageEntry>& entries, const Stage& stage) {
  if (stage.count == 1) return stage.in_flight;
  const auto sends = [](const StageEntry& e) { return e.tied && e.kind == StageEntry::Kind::send; };
  const auto first = std::ranges::find_if(entries, sends);
  if (first == entries.end()) return 1;
  std::uint32_t kept = 0;
  std::uint32_t most = 1;
  for (const StageEntry& entry : entries) {
    const bool makes = entry.kind == StageEntry::Kind::run &&
                       entry.pass.chunk == first->pass.chunk &&
                       entry.pass.direction == Direction::forward;
    if (makes) most = std::max(most, ++kept);
    if (sends(entry)) --kept;
  }
  return most;
}

/// Most passes whose boundaries wait beside those of the running pass (Stage::waiting). A message
/// between passes takes the place of a running pass.
std::uint32_t waiting_boundaries(const std::vector<StageEntry>& entries, std::uint32_t stage) {
  using Kind = StageEntry::Kind;
  std::uint32_t waiting = 0;
  std::uint32_t most = 0;
  for (const StageEntry& entry : entries) {
    if (entry.tied) continue;
    const bool forward = entry.pass.direction == Direction::forward;
    const bool embeds = stage == 0 && entry.pass.chunk == 0;
    if (entry.kind == Kind::send || (entry.kind == Kind::run && !(embeds && forward))) --waiting;
    if (entry.kind != Kind::send) most = std::max(most, waiting);
    if (entry.kind == Kind::receive || (entry.kind == Kind::run && !(embeds && !forward)))
      ++waiting;
  }
  return most;
}

/// Returns what a stage does to take one round forward through the model, part by part.
std::vector<StageEntry> evaluation_of(const Pipeline& pipeline, std::uint32_t stage) {
  using Kind = StageEntry::Kind;
  const std::uint32_t stages = pipeline.stages;
  const std::uint32_t last = stages * pipeline.chunks - 1;
  std::vector<StageEntry> entries;
  for (std::uint32_t chunk = 0; chunk < pipeline.chunks; ++chunk) {
    const Pass pass{Direction::forward, chunk, 0};
    const std::uint32_t part = chunk * stages + stage;
    if (stages > 1 && part > 0)
      entries.push_back({Kind::receive, pass, (stage + stages - 1) % stages});
    entries.push_back({Kind::run, pass});
    if (stages > 1 && part < last) entries.push_back({Kind::send, pass, (stage + 1) % stages});
  }
  return entries;
}

double busy_seconds(const std::vector<PassTime>& passes) {
  double seconds = 0;
  for (const PassTime& pass : passes) seconds += pass.end - pass.start;
  return seconds;
}

/// Refuses what a pipeline that stays full excludes in this version.
void check_full_pipeline(const Workload& workload, const Pipeline& pipeline) {
  const bool each = pipeline.schedule == PipelineSchedule::pipedream;
  check(
      !each || pipeline.rounds == 1, ErrorCode::invalid_argument,
      fmt::format("the schedule pipedream updates after each round, and a step has {}; use one, or "
                  "the schedule pipedream_2bw",
                  pipeline.rounds));
  check(workload.replicas.count == 1 || workload.replicas.sharding == Sharding::none,
        ErrorCode::not_supported,
        "this version shares out no state among the replicas of a stage with schedule "
        "pipedream_2bw; plan whole replicas, or the schedule 1f1b");
}

Stage stage_of_full_pipeline(const Pipeline& pipeline, const FullPipeline& full,
                             const std::vector<StageSeconds>& seconds, std::uint32_t stage) {
  // Stages meet after each step, and so begin the next one together.
  const Timeline timeline = timeline_of(pipeline, full.passes, seconds, /*message=*/0);
  Stage made{.count = pipeline.stages,
             .chunks = {},
             .entries = full.entries[stage],
             .evaluation = evaluation_of(pipeline, stage),
             .in_flight = full_rounds_in_flight(pipeline, stage),
             .stretch = seconds_of(timeline) / busy_seconds(timeline[stage])};
  made.tied_in_flight = tied_in_flight(made.entries, made);
  return made;
}

Stage stage_of_pipeline(const Pipeline& pipeline, const std::vector<StageSeconds>& seconds,
                        std::uint32_t stage) {
  const std::vector<std::vector<Pass>> passes = passes_of(pipeline);
  const Timeline timeline = timeline_of(pipeline, passes, seconds, /*message=*/0);
  const std::vector<StageEntry> entries = entries_of(pipeline, passes, timeline)[stage];
  Stage made{.count = pipeline.stages,
             .chunks = {},
             .entries = entries,
             .evaluation = evaluation_of(pipeline, stage),
             .in_flight = rounds_in_flight(passes[stage]),
             .stretch = seconds_of(timeline) / busy_seconds(timeline[stage])};
  made.tied_in_flight = tied_in_flight(entries, made);
  made.waiting = waiting_boundaries(entries, stage);
  return made;
}

std::vector<BlockRange> named_parts(const Workload& workload, const Pipeline& pipeline) {
  std::vector<BlockRange> ranges;
  std::uint32_t first = 0;
  for (const std::uint32_t layers : pipeline.layers) {
    ranges.push_back({first, first + layers});
    first += layers;
  }
  const bool of_model = ranges.size() == std::size_t{pipeline.stages} * pipeline.chunks &&
                        first == workload.layers() && std::ranges::count(pipeline.layers, 0U) == 0;
  check(of_model, ErrorCode::invalid_argument,
        fmt::format("the parts of the pipeline have {} layers; {} stages with {} chunks need {} "
                    "parts of at least 1 layer, with {} in all, embedding and head counted",
                    fmt::join(pipeline.layers, " + "), pipeline.stages, pipeline.chunks,
                    pipeline.stages * pipeline.chunks, workload.layers()));
  return ranges;
}

}  // namespace

std::vector<BlockRange> cut_layers(const Workload& workload, const Pipeline& pipeline) {
  const std::uint32_t layers = workload.layers();
  const std::uint32_t parts = pipeline.stages * pipeline.chunks;
  check(layers >= parts, ErrorCode::invalid_argument,
        fmt::format("{} layers, embedding and head counted, cannot be cut into {} parts; use fewer "
                    "stages or chunks",
                    layers, parts));
  if (!pipeline.layers.empty()) return named_parts(workload, pipeline);
  // least[p][l]: the longest of p parts of the layers from l on, at best; cut[p][l]: where the
  // first of them ends then.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector least(parts + 1, std::vector<double>(layers + 1, kNever));
  std::vector cut(parts + 1, std::vector<std::uint32_t>(layers + 1));
  least[0][layers] = 0;
  for (std::uint32_t p = 1; p <= parts; ++p) {
    for (std::uint32_t first = 0; first < layers; ++first) {
      double part = 0;
      for (std::uint32_t end = first + 1; end <= layers; ++end) {
        part += flops_of(workload, end - 1);
        const double longest = std::max(part, least[p - 1][end]);
        if (longest >= least[p][first]) continue;
        least[p][first] = longest;
        cut[p][first] = end;
      }
    }
  }
  std::vector<BlockRange> ranges;
  std::uint32_t first = 0;
  for (std::uint32_t p = parts; p > 0; --p) {
    const std::uint32_t end = cut[p][first];
    ranges.push_back({first, end});
    first = end;
  }
  return ranges;
}

void empty_other_stages(Workload& workload) {
  for (std::uint32_t block = 0; block < workload.blocks.size(); ++block) {
    if (workload.runs(workload.layer_of(block))) continue;
    BlockShape empty;
    empty.name = workload.blocks[block].name;
    empty.layer = workload.blocks[block].layer;
    workload.blocks[block] = std::move(empty);
  }
}

Workload workload_of_stage(const Workload& workload, const Pipeline& given, std::uint32_t stage) {
  Pipeline pipeline = given;
  pipeline.tied_head = workload.tied_head;
  check(!workload.operator_tiles, ErrorCode::not_supported,
        "in this version layers in tiles are not cut into stages; plan whole layers");
  if (has_stale_weights(pipeline.schedule)) check_full_pipeline(workload, pipeline);
  const std::vector<BlockRange> parts = cut_layers(workload, pipeline);
  const std::vector<StageSeconds> seconds = seconds_of(workload, pipeline, parts);
  Workload own = workload;
  own.rounds = pipeline.rounds;
  if (has_stale_weights(pipeline.schedule)) {
    const FullPipeline full = full_pipeline(pipeline, seconds);
    own.stage = stage_of_full_pipeline(pipeline, full, seconds, stage);
    own.stale = stale_stage(pipeline, full, stage);
  } else {
    own.stage = stage_of_pipeline(pipeline, seconds, stage);
  }
  for (std::uint32_t part = stage; part < parts.size(); part += pipeline.stages) {
    own.stage.chunks.push_back(parts[part]);
  }
  empty_other_stages(own);
  return own;
}

}  // namespace spillway::plan
