// What a configuration names of a step: where data waits, how far ahead parameters come, and the
// orders of its passes, of the sums of its gradients and of the passes of a pipeline's stages.
#pragma once

#include <cstdint>
#include <string_view>

namespace spillway::plan {

/// Where data waits, the nearest to the GPU first.
enum class Tier : std::uint8_t { device, host, nvme };

[[nodiscard]] std::string_view name_of(Tier tier);

/// Blocks that parameters come ahead of their use, where nobody has named or found a better number.
inline constexpr std::uint32_t kUsualPrefetch = 1;

enum class WorkOrder : std::uint8_t { layer_major, micro_batch_major };

/// How the gradients of ranks add up.
enum class SumOrder : std::uint8_t {
  fast,   ///< of each round, rounded to the compute dtype: the bits depend on the number of ranks
  fixed,  ///< one by one in fp32, as rounds do: round by round, and in each in the order of ranks
};

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
/// Whether passes use weights that later updates have changed: pipeline/stale.hpp.
[[nodiscard]] constexpr bool has_stale_weights(PipelineSchedule schedule) {
  return schedule == PipelineSchedule::pipedream || schedule == PipelineSchedule::pipedream_2bw;
}

}  // namespace spillway::plan
