// StepTrace: the ops of a run's first steps as they were executed, one lane of the plan a lane of
// the trace, for RUN/trace.json. Control thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "runtime/base/trace.hpp"
#include "runtime/engine/step/executor.hpp"
#include "runtime/plan/step/step_plan.hpp"

namespace spillway::engine {

class StepTrace {
 public:
  /// Allocates for all steps that it records; `ops` of each.
  explicit StepTrace(std::size_t ops);

  /// Records the step that `executor` has just run; nothing once enough steps are recorded.
  void record(const Executor& executor);
  /// Writes Chrome/Perfetto JSON, in the place of what `path` held. Throws `Error{io_error}`, and
  /// then leaves that.
  void write(const std::filesystem::path& path) const;

 private:
  Trace trace_;
  std::array<LaneIndex, plan::kMachineLanes> lanes_{};
  std::uint64_t steps_ = 0;
};

}  // namespace spillway::engine
