// ExternalPasses: passes that another framework runs: what it needs of each block, and what it
// leaves.
#pragma once

#include "runtime/plan/step/builder/gradients.hpp"
#include "runtime/plan/step/builder/state_side.hpp"
#include "runtime/plan/step/builder/step_draft.hpp"
#include "runtime/plan/step/builder/weights.hpp"

namespace spillway::plan {

class ExternalPasses : public OpWriter {
 public:
  ExternalPasses(StepDraft& step, Weights& weights, Gradients& gradients, StateSide& state)
      : OpWriter(step), weights_(weights), gradients_(gradients), state_(state) {}

  /// Writes a step: all passes, or a forward pass alone where parameters are streamed.
  void training();
  /// Writes a backward of each block, the last one first, which leaves the gradient of the whole
  /// step on the host.
  void backward();
  /// Writes the norms of gradients that several backward passes have left.
  void norms();

 private:
  /// What a pass reads of a block.
  struct ExternalWeights {
    Buffer trained;
    Buffer frozen;
  };
  /// Declares that a pass reads the parameters of its block where the framework finds them: on the
  /// host, or on the device, to where they are uploaded.
  ExternalWeights bring_external(OpDraft& pass);
  using OpWriter::give_back;
  void give_back(const ExternalWeights& weights);
  /// Writes the pending update and a forward of each block.
  void forward();

  Weights& weights_;
  Gradients& gradients_;
  StateSide& state_;
};

}  // namespace spillway::plan
