// ExternalPasses: passes that another framework runs: what it needs of each block, and what it
// leaves.
#pragma once

#include "runtime/plan/step/builder/gradients.hpp"
#include "runtime/plan/step/builder/state_side.hpp"
#include "runtime/plan/step/builder/step_draft.hpp"
#include "runtime/plan/step/builder/weights.hpp"

namespace spillway::plan {

class ExternalPasses : public StepPart {
 public:
  ExternalPasses(StepDraft& step, Weights& weights, Gradients& gradients, StateSide& state)
      : StepPart(step), weights_(weights), gradients_(gradients), state_(state) {}

  void training();
  void backward();
  void norms();

 private:
  /// What a pass reads of a block.
  struct ExternalWeights {
    Buffer trained;
    Buffer frozen;
  };
  ExternalWeights bring_external(OpDraft& pass);
  using StepPart::give_back;
  void give_back(const ExternalWeights& weights);
  void forward();

  Weights& weights_;
  Gradients& gradients_;
  StateSide& state_;
};

}  // namespace spillway::plan
