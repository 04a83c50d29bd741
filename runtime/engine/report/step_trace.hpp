// StepTrace: the ops of the first plans as they were executed, one lane of the plan a lane of the
// trace, for RUN/trace.json and for embedded trainers. One thread at a time records; any may write
// meanwhile.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "runtime/base/trace.hpp"
#include "runtime/engine/step/executor.hpp"
#include "runtime/plan/step_plan.hpp"

namespace spillway::engine {

class StepTrace {
 public:
  /// Whether another framework runs passes, which then have a lane too.
  enum class Passes : std::uint8_t { ours, external };

  /// Allocates room for all plans that it records, with at most `ops` ops each.
  explicit StepTrace(std::size_t ops, Passes passes = Passes::ours);

  /// Records the plan that `executor` has just run. No effect once enough are recorded.
  void record(const Executor& executor);
  /// Records an op that no plan lists and that has just ended. No effect once enough plans are
  /// recorded.
  void record(const plan::Op& op, std::chrono::nanoseconds duration);
  /// Replaces `path` by the trace as Chrome/Perfetto JSON. Throws `Error{io_error}`, and then
  /// leaves the file as it was.
  void write(const std::filesystem::path& path) const;

 private:
  void record(const plan::Op& op, std::chrono::nanoseconds start,
              std::chrono::nanoseconds duration);

  Trace trace_;
  std::array<LaneIndex, plan::kLaneCount> lanes_{};
  std::uint64_t plans_ = 0;
};

}  // namespace spillway::engine
