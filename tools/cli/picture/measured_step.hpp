// What a run's trace says of its steps: one of them as a timeline, and how long each kind of op
// takes in a step. Pure but for reading the file.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace spillway::cli {

/// Returns `step_seconds`, `lanes` (name and bars), `kinds` (mean seconds and number of ops in a
/// step by name) and `steps`, the number of steps that they are the mean of. These are the steps
/// with the ops that most steps of the trace have, without the first of them; the timeline is that
/// of the step of median length. Returns null for a trace without such steps, or one of an earlier
/// version. Throws `Error{corrupt_data}` for a file that is no trace.
[[nodiscard]] nlohmann::ordered_json measured_step(const std::filesystem::path& trace);

}  // namespace spillway::cli
