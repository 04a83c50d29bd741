#include "runtime/plan/pipeline/stale.hpp"

#include <algorithm>

#include "runtime/base/error.hpp"

namespace spillway::plan {
namespace {

/// Returns the step in which a stage runs a pass: 0 fills the pipeline, and 1 is the first step.
std::uint32_t step_of(const Pipeline& pipeline, std::uint32_t stage, const Pass& pass) {
  const std::uint32_t rounds = pipeline.rounds;
  if (pass.direction == Direction::backward) return 1 + pass.round / rounds;
  const std::uint32_t begun = rounds_begun(pipeline, stage);
  return pass.round < begun ? 0 : 1 + (pass.round - begun) / rounds;
}

/// Returns what of all that a stage does is of one step, with its rounds counted from `first`.
std::vector<StageEntry> only_of_step(const Pipeline& pipeline, std::uint32_t stage,
                                     const std::vector<StageEntry>& all, std::uint32_t step,
                                     std::uint32_t first) {
  std::vector<StageEntry> kept;
  for (StageEntry s : all) {
    const std::uint32_t maker = s.kind == StageEntry::Kind::receive ? s.peer : stage;
    if (step_of(pipeline, maker, s.pass) != step) continue;
    s.pass.round -= first;
    kept.push_back(s);
  }
  return kept;
}

/// Returns the place of each round that is the same in every step; none where a step has no more
/// rounds than it begins.
std::vector<std::uint32_t> fixed_places(const Pipeline& pipeline, std::uint32_t stage) {
  const std::uint32_t begun = rounds_begun(pipeline, stage);
  if (pipeline.rounds <= begun) return {};
  return places_of_rounds(pipeline.rounds, begun + 1);
}

}  // namespace

std::vector<std::vector<Pass>> passes_of_steps(const Pipeline& pipeline, std::uint32_t steps) {
  check(has_stale_weights(pipeline.schedule), ErrorCode::invalid_argument,
        "only the steps of PipeDream and PipeDream-2BW follow each other in a full pipeline");
  Pipeline all = pipeline;
  all.rounds *= steps;
  return passes_of(all);
}

std::uint32_t rounds_begun(const Pipeline& pipeline, std::uint32_t stage) {
  return pipeline.stages - 1 - stage;
}

std::uint32_t updates_before(const Pipeline& pipeline, std::uint32_t stage, std::uint32_t round) {
  if (pipeline.schedule == PipelineSchedule::pipedream) {
    const std::uint32_t in_flight = rounds_begun(pipeline, stage);
    return round - std::min(round, in_flight);
  }
  const std::uint32_t step = round / pipeline.rounds;
  const bool late = pipeline.schedule == PipelineSchedule::pipedream_2bw;
  return step - std::min(step, late ? 1U : 0U);
}

std::vector<std::uint32_t> ages_of_rounds(const Pipeline& pipeline, std::uint32_t stage) {
  const std::uint32_t begun = rounds_begun(pipeline, stage);
  std::vector<std::uint32_t> ages;
  // This step is late enough: the weights of the first rounds of all could be no older.
  const std::uint32_t step = begun + 1;
  for (std::uint32_t round = 0; round < pipeline.rounds + begun; ++round) {
    ages.push_back(step - updates_before(pipeline, stage, step * pipeline.rounds + round));
  }
  return ages;
}

std::vector<std::uint32_t> places_of_rounds(std::uint32_t rounds, std::uint32_t in_flight) {
  SPILLWAY_ASSERT(in_flight > 0 && rounds >= in_flight);
  // Rounds are cut into rows, each at least as long as what is in flight, which take the places
  // from the first one on; so two rounds of one place are a row apart, as is the step's end.
  const std::uint32_t rows = rounds / in_flight;
  std::vector<std::uint32_t> places;
  for (std::uint32_t row = 0; row < rows; ++row) {
    const std::uint32_t first = row * rounds / rows;
    const std::uint32_t end = (row + 1) * rounds / rows;
    for (std::uint32_t round = first; round < end; ++round) places.push_back(round - first);
  }
  return places;
}

/// Takes what it returns from the second step of several, which begins and ends full.
FullPipeline full_pipeline(const Pipeline& pipeline, const std::vector<StageSeconds>& seconds) {
  constexpr std::uint32_t kFull = 2;
  const std::uint32_t count = kFull + (pipeline.stages + pipeline.rounds - 1) / pipeline.rounds;
  Pipeline all = pipeline;
  all.rounds *= count;
  const std::vector<std::vector<Pass>> passes = passes_of_steps(pipeline, count);
  const std::vector<std::vector<StageEntry>> entries =
      entries_of(all, passes, timeline_of(all, passes, seconds, /*message=*/0));
  FullPipeline full;
  for (std::uint32_t stage = 0; stage < pipeline.stages; ++stage) {
    full.fill.push_back(only_of_step(pipeline, stage, entries[stage], 0, 0));
    full.entries.push_back(only_of_step(pipeline, stage, entries[stage], kFull, pipeline.rounds));
    std::vector<Pass>& of_stage = full.passes.emplace_back();
    for (const StageEntry& entry : full.entries.back()) {
      if (entry.kind == StageEntry::Kind::run) of_stage.push_back(entry.pass);
    }
  }
  return full;
}

std::uint32_t full_rounds_in_flight(const Pipeline& pipeline, std::uint32_t stage) {
  const std::vector<std::uint32_t> places = fixed_places(pipeline, stage);
  if (places.empty()) return rounds_begun(pipeline, stage) + 1;
  return *std::ranges::max_element(places) + 1;
}

StaleStage stale_stage(const Pipeline& pipeline, const FullPipeline& full, std::uint32_t stage) {
  StaleStage made{.ages = ages_of_rounds(pipeline, stage),
                  .begun = rounds_begun(pipeline, stage),
                  .places = fixed_places(pipeline, stage),
                  .fill = full.fill[stage]};
  made.versions = *std::ranges::max_element(made.ages);
  if (made.places.empty()) {
    // No smaller number both divide.
    made.phases = full_rounds_in_flight(pipeline, stage) * made.versions;
  }
  return made;
}

StaleStage delayed_updates(std::uint32_t rounds) {
  StaleStage delayed;
  delayed.ages.assign(rounds, 1);
  delayed.versions = 1;
  delayed.delays_updates = true;
  return delayed;
}

}  // namespace spillway::plan
