// Timeline: when the passes of a pipeline run, from how long each takes, and the messages between
// its stages meanwhile.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/pipeline/schedule.hpp"

namespace spillway::plan {

/// The seconds that passes of one stage take, by chunk. All are above zero.
struct StageSeconds {
  std::vector<double> forward;
  std::vector<double> backward;
};

struct PassTime {
  double start = 0;
  double end = 0;
};

/// By stage, in the order of its passes.
using Timeline = std::vector<std::vector<PassTime>>;

/// Returns when each pass runs: once the passes ahead of it on its stage are over and its input has
/// arrived. Input that no pass makes is there from the start. `message` is the time from the end of
/// a pass on one stage to the start of the next one on another. Throws `Error{invalid_argument}` if
/// the passes wait for each other.
[[nodiscard]] Timeline timeline_of(const Pipeline& pipeline,
                                   const std::vector<std::vector<Pass>>& passes,
                                   const std::vector<StageSeconds>& seconds, double message);

/// Seconds from the start to the end of the last pass.
[[nodiscard]] double seconds_of(const Timeline& timeline);

/// Returns the entries of each stage. Messages of all stages share one order, given by the
/// timeline: a message is placed where it has been made and one of the receiver's places for
/// `rounds_in_flight` is free. So there is no deadlock, although each stage ends a message before
/// it begins the next one, and a message ends only when both its stages have come to it.
[[nodiscard]] std::vector<std::vector<StageEntry>> entries_of(
    const Pipeline& pipeline, const std::vector<std::vector<Pass>>& passes,
    const Timeline& timeline);

}  // namespace spillway::plan
