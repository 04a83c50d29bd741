// Activations: the ways of the tensors between blocks and inside them: boundaries, and what
// backward needs.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/plan/step/builder/step_draft.hpp"

namespace spillway::plan {

class Activations : public StepPart {
 public:
  /// A saved tensor that waits for backward off the device: a boundary, or a block's internals.
  struct Leaving {
    Value value;
    std::uint32_t block;  ///< that its copies name
    Bytes bytes;
    PoolKind slots;    ///< on the device
    PoolKind staging;  ///< on the way to the disk
    Buffer home;
  };

  explicit Activations(StepDraft& step) : StepPart(step) { restart(); }
  void restart();

  [[nodiscard]] Buffer passing_activation(std::uint32_t layer, std::uint32_t m) const;
  [[nodiscard]] Buffer passing_gradient(std::uint32_t m) const;
  Buffer returning_activation(std::uint32_t layer, std::uint32_t m);
  Buffer place_for_output(std::uint32_t layer, std::uint32_t m);
  Buffer place_for_gradient(std::uint32_t m);
  void pass_activation(std::uint32_t layer, std::uint32_t m, const Buffer& made, bool train);
  void pass_gradient(std::uint32_t m, const Buffer& made);

  [[nodiscard]] Leaving internals(std::uint32_t block, std::uint32_t m) const;
  void take_away(const Leaving& what, const Buffer& made);
  [[nodiscard]] Buffer kept_activations(std::uint32_t block, std::uint32_t m) const;
  Buffer returning_activations(std::uint32_t block, std::uint32_t m);

  // Between passes and messages of the stages of a pipeline.
  void put_by(Direction direction, std::uint32_t layer);
  void restore_boundary(Direction direction, std::uint32_t layer);
  [[nodiscard]] bool all_restored() const { return waiting_.empty(); }

 private:
  [[nodiscard]] Leaving boundary(std::uint32_t layer, std::uint32_t m) const;
  void append_copy(const Leaving& what, Lane lane, const Buffer& from, const Buffer& to);
  Buffer bring_back(const Leaving& what);

  std::vector<Buffer> passing_;      // by micro-batch: the boundary on its way
  std::map<Value, Buffer> waiting_;  // slots of boundaries between passes and messages of a stage
};

}  // namespace spillway::plan
