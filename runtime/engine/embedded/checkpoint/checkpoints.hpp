// Checkpoints: all state of an embedded trainer, to a folder and from one; `checkpoint_folder`
// has what makes a folder a checkpoint. Nothing may run meanwhile.
#pragma once

#include <filesystem>

#include "runtime/engine/embedded/plan/layout.hpp"
#include "runtime/engine/embedded/update/updates.hpp"
#include "runtime/engine/embedded/values/parameter_state.hpp"
#include "runtime/engine/training/step_cycle.hpp"

namespace spillway::engine {

/// What checkpoints have; all outlive Checkpoints.
struct CheckpointedState {
  StepEngine& engine;
  StepCycle& cycle;
  ParameterState& parameters;
  EmbeddedUpdates& updates;
};

class Checkpoints {
 public:
  /// Keeps references to all arguments, which outlive this object.
  Checkpoints(const EmbeddedOptions& options, const EmbeddedLayout& layout,
              const CheckpointedState& state)
      : options_(options), layout_(layout), state_(state) {}

  // As EmbeddedTrainer describes these

  void save(const std::filesystem::path& directory);
  /// Where this fails after it has begun to replace state, no parameter's state is whole.
  void load(const std::filesystem::path& directory);

 private:
  [[nodiscard]] SavedShape shape() const;

  const EmbeddedOptions& options_;
  const EmbeddedLayout& layout_;
  const CheckpointedState state_;
};

}  // namespace spillway::engine
