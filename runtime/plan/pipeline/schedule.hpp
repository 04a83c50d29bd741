// PipelineSchedule: in which order each stage of a pipeline runs its passes. A pipeline cuts the
// layers into stages, one to a rank; interleaved, a stage has several chunks of layers, and chunk c
// of stage s is the part c * stages + s of the model. A pass takes one round's micro-batches
// through one chunk.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace spillway::plan {

enum class PipelineSchedule : std::uint8_t {
  naive,     ///< one round goes through all stages, forth and back, before the next one starts
  f_then_b,  ///< the passes forward of all rounds, then those backward (GPipe, Huang et al. 2019)
  one_f_one_b,  ///< a pass backward as early as can be, one forward for each (PipeDream-Flush)
  interleaved,  ///< 1F1B with several chunks in a stage (Narayanan et al. 2021, section 2.2)
  // Other mathematics: the pipeline stays full between updates, and passes use older weights.
  pipedream,      ///< an update after each round (Narayanan et al. 2019, PipeDream)
  pipedream_2bw,  ///< one after all rounds, a step late (Narayanan et al. 2021, PipeDream-2BW)
};

[[nodiscard]] std::string_view name_of(PipelineSchedule schedule);
/// Returns whether passes use weights that later updates have changed: pipeline/stale.hpp.
[[nodiscard]] constexpr bool has_stale_weights(PipelineSchedule schedule) {
  return schedule == PipelineSchedule::pipedream || schedule == PipelineSchedule::pipedream_2bw;
}

/// How a pipeline is cut and run.
struct Pipeline {
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::uint32_t stages = 1;
  std::uint32_t rounds = 1;  ///< what the published formulas call micro-batches
  std::uint32_t chunks = 1;  ///< of a stage; more than one only where `schedule` is interleaved
  bool tied_head = false;    ///< the head uses the embedding's parameters
  /// Counts the layers of each part in the model's order, embedding and head among them; empty: the
  /// FLOPs of parts are balanced.
  std::vector<std::uint32_t> layers{};
};

enum class Direction : std::uint8_t { forward, backward };

struct Pass {
  Direction direction = Direction::forward;
  std::uint32_t chunk = 0;
  std::uint32_t round = 0;

  bool operator==(const Pass&) const = default;
};

/// Returns the passes of each stage in their order, from an empty pipeline to an empty one. In all
/// schedules the passes backward of a chunk are in the order of rounds, so that gradients add up in
/// the same order. Throws `Error{invalid_argument}` for a pipeline that is none: interleaved, the
/// number of rounds is a multiple of that of stages, and of PipeDream-2BW at least that.
[[nodiscard]] std::vector<std::vector<Pass>> passes_of(const Pipeline& pipeline);

/// Counts the rounds that a stage has in flight at once: from the oldest whose backward is to come
/// to the newest whose forward has run. For so many it keeps the activations of each chunk.
[[nodiscard]] std::uint32_t rounds_in_flight(const std::vector<Pass>& passes);

}  // namespace spillway::plan
