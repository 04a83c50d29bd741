// Messages: what passes between a stage of a pipeline and its neighbours. The net lane keeps their
// order, in which nothing waits for itself (plan/pipeline/timeline.hpp).
#pragma once

#include <cstdint>

#include "runtime/plan/step/builder/activations.hpp"
#include "runtime/plan/step/builder/step_draft.hpp"
#include "runtime/plan/step/builder/weights.hpp"

namespace spillway::plan {

class Messages : public OpWriter {
 public:
  Messages(StepDraft& step, Weights& weights, Activations& activations)
      : OpWriter(step), weights_(weights), activations_(activations) {}

  /// Sends or receives what the entry names: the boundaries of a pass, or a tied gradient.
  void exchange(const StageEntry& entry);
  /// Returns whether the first pass of a list lends the embedding to the stage of a tied head.
  [[nodiscard]] bool lends_first() const {
    return step_.round == 0 && workload_.lends_embedding() &&
           !(step_.trains && workload_.stale.stays_full());
  }
  /// Sends the embedding, which lies in `weights`, to the stage of the tied head.
  void lend_embedding(const Buffer& weights);
  /// Sends likewise the version of the embedding that the round uses.
  void lend_stash_of_embedding();
  /// Receives the embedding for the tied head.
  void borrow_embedding();

 private:
  void append_message(OpKind kind, std::uint32_t peer, std::uint32_t block, std::uint32_t m,
                      Bytes bytes, const Access& what);
  /// Receives a layer's boundaries, and puts them by for the pass that reads them.
  void receive_boundaries(const StageEntry& entry, std::uint32_t layer);
  /// Sends a layer's boundaries, and frees their slots.
  void send_boundaries(const StageEntry& entry, std::uint32_t layer);
  /// Sends or receives what a tied head adds to the gradient of the embedding in a round.
  void exchange_tied_gradient(const StageEntry& entry);

  Weights& weights_;
  Activations& activations_;
};

}  // namespace spillway::plan
