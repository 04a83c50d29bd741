#include "runtime/plan/pipeline/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "runtime/base/error.hpp"

namespace spillway::plan {
namespace {

void check_pipeline(const Pipeline& pipeline) {
  const auto& [schedule, stages, rounds, chunks, tied_head, layers] = pipeline;
  check(stages > 0 && rounds > 0 && chunks > 0, ErrorCode::invalid_argument,
        fmt::format("a pipeline of {} stages, {} rounds and {} chunks; each is at least 1", stages,
                    rounds, chunks));
  if (schedule != PipelineSchedule::interleaved) {
    check(chunks == 1, ErrorCode::invalid_argument,
          fmt::format("schedule {} has one chunk in a stage, not {}; use interleaved",
                      name_of(schedule), chunks));
    // With fewer, a stage would need the weights of more than two steps at once.
    check(schedule != PipelineSchedule::pipedream_2bw || rounds >= stages,
          ErrorCode::invalid_argument,
          fmt::format("a pipeline of {0} stages with schedule pipedream_2bw needs at least {0} "
                      "rounds in a step, not {1}",
                      stages, rounds));
    return;
  }
  check(rounds % stages == 0, ErrorCode::invalid_argument,
        fmt::format("an interleaved pipeline of {0} stages needs a multiple of {0} rounds, not {1}",
                    stages, rounds));
}

/// The order in which a stage takes up chunks and rounds: as many rounds as there are stages go
/// through the first chunk, then through the next one.
Pass pass_number(const Pipeline& pipeline, Direction direction, std::uint32_t number) {
  const std::uint32_t group = pipeline.stages * pipeline.chunks;
  const std::uint32_t chunk = number % group / pipeline.stages;
  const std::uint32_t round = number / group * pipeline.stages + number % pipeline.stages;
  const bool forward = direction == Direction::forward;
  return {direction, forward ? chunk : pipeline.chunks - 1 - chunk, round};
}

/// Number of passes forward ahead of the first one backward.
std::uint32_t passes_ahead(const Pipeline& pipeline, std::uint32_t stage) {
  const std::uint32_t behind = pipeline.stages - 1 - stage;
  switch (pipeline.schedule) {
    case PipelineSchedule::naive: return 1;
    case PipelineSchedule::f_then_b: return pipeline.rounds;
    case PipelineSchedule::one_f_one_b:
    case PipelineSchedule::pipedream:
    case PipelineSchedule::pipedream_2bw: return behind + 1;
    case PipelineSchedule::interleaved:
      return 2 * behind + (pipeline.chunks - 1) * pipeline.stages + 1;
  }
  return 0;
}

std::vector<Pass> passes_of_stage(const Pipeline& pipeline, std::uint32_t stage) {
  const std::uint32_t all = pipeline.rounds * pipeline.chunks;
  const std::uint32_t ahead = std::min(passes_ahead(pipeline, stage), all);
  std::vector<Pass> passes;
  passes.reserve(std::size_t{2} * all);
  std::uint32_t forward = 0;
  for (std::uint32_t backward = 0; backward < all; ++backward) {
    for (; forward < std::min(backward + ahead, all); ++forward) {
      passes.push_back(pass_number(pipeline, Direction::forward, forward));
    }
    passes.push_back(pass_number(pipeline, Direction::backward, backward));
  }
  return passes;
}

}  // namespace

std::vector<std::vector<Pass>> passes_of(const Pipeline& pipeline) {
  check_pipeline(pipeline);
  std::vector<std::vector<Pass>> passes;
  passes.reserve(pipeline.stages);
  for (std::uint32_t stage = 0; stage < pipeline.stages; ++stage) {
    passes.push_back(passes_of_stage(pipeline, stage));
  }
  return passes;
}

std::uint32_t rounds_in_flight(const std::vector<Pass>& passes) {
  struct Rounds {
    std::uint32_t begun = 0;
    std::uint32_t ended = 0;
  };
  std::vector<Rounds> of_chunk;
  std::uint32_t most = 1;
  for (const Pass& pass : passes) {
    if (pass.chunk >= of_chunk.size()) of_chunk.resize(pass.chunk + 1);
    Rounds& rounds = of_chunk[pass.chunk];
    const bool forward = pass.direction == Direction::forward;
    (forward ? rounds.begun : rounds.ended) = pass.round + 1;
    most = std::max(most, rounds.begun - rounds.ended);
  }
  return most;
}

}  // namespace spillway::plan
