// RunReader: a run of any number of ranks, read only: its configuration, its last committed step
// and the masters in it.
// For evaluation, generation and export. Takes no lock: a process that trains the run goes on.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "runtime/engine/run/directory.hpp"
#include "runtime/engine/state/saved_state.hpp"
#include "runtime/model/parameter_layout.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::engine {

class RunReader final : public model::ParameterSource {
 public:
  /// Opens the last committed step. Throws `Error{invalid_argument}` if there is no run or no
  /// committed step, `Error{corrupt_data}` if its state is missing or not what was written.
  explicit RunReader(const std::filesystem::path& run);

  [[nodiscard]] const RunManifest& manifest() const { return manifest_; }
  [[nodiscard]] const RunConfig& config() const { return config_; }
  [[nodiscard]] const model::ModelLayout& layout() const { return layout_; }
  [[nodiscard]] const TrainingState& state() const { return saved_->state(); }
  /// Returns the whole state, to go on from; see StepCycle::adopt.
  [[nodiscard]] const SavedState& saved() const { return *saved_; }
  /// Reads masters of the last committed step, every checksum verified. One call at a time. Throws
  /// `Overtaken`.
  void read(BlockIndex block, ElementCount first, std::span<float> target) const override;

 private:
  RunManifest manifest_;
  RunConfig config_;
  model::ModelLayout layout_;
  std::unique_ptr<SavedState> saved_;
};

}  // namespace spillway::engine
