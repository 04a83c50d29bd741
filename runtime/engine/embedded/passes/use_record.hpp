// UseRecord: what the last step of an embedded trainer has used, and a trace of it. Any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "runtime/base/mutex.hpp"
#include "runtime/engine/embedded/plan/embedded_plan.hpp"
#include "runtime/engine/embedded_trainer.hpp"
#include "runtime/engine/report/step_trace.hpp"
#include "runtime/engine/step/executor.hpp"
#include "runtime/engine/step/op_actions.hpp"

namespace spillway::engine {

class UseRecord {
 public:
  /// Begins a trace, before anything is recorded; `ops`: the most that a step has.
  void trace(std::size_t ops);
  /// Records a plan that `run` has finished, and the bytes that `actions` have moved by then.
  void note(EmbeddedPlan plan, const Executor& run, const OpActions& actions);
  /// Records a copy of a gradient from the device that has just ended.
  void note_download(std::uint32_t block, Bytes bytes, std::chrono::nanoseconds duration);
  /// Ends a step: the next plan that is no update is the first of another.
  void end_step();

  /// Returns what the last step used; a plan under way is not in it.
  [[nodiscard]] EmbeddedUse use() const;
  /// Writes the trace. Throws `Error{invalid_argument}` if there is none.
  void write_trace(const std::filesystem::path& path) const;

 private:
  mutable Mutex mutex_;
  /// Recorded under `mutex_`, and written meanwhile.
  std::optional<StepTrace> trace_;
  EmbeddedUse use_ SPILLWAY_GUARDED_BY(mutex_);
  double download_seconds_ SPILLWAY_GUARDED_BY(mutex_) = 0;  ///< since a plan was over
  bool begins_step_ SPILLWAY_GUARDED_BY(mutex_) = true;
};

}  // namespace spillway::engine
