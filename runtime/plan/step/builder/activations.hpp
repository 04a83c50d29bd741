// Activations: the ways of the tensors between blocks and inside them: boundaries, and what
// backward needs.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/plan/step/builder/step_draft.hpp"

namespace spillway::plan {

class Activations : public OpWriter {
 public:
  /// A saved tensor that waits for backward off the device: a boundary, or a block's saved
  /// activations.
  struct Leaving {
    Value value;
    std::uint32_t block;  ///< that its copies name
    Bytes bytes;
    PoolKind slots;    ///< on the device
    PoolKind staging;  ///< on the way to the disk
    Buffer home;
  };

  explicit Activations(StepDraft& step) : OpWriter(step) { restart(); }
  /// Forgets the boundaries of the last list.
  void restart();

  // Boundaries; `m` is a micro-batch of the round

  /// Returns where the layer's output is for the next layer's forward.
  [[nodiscard]] Buffer passing_boundary(std::uint32_t layer, std::uint32_t m) const;
  /// Returns where the gradient of a layer's output is for the layer's backward.
  [[nodiscard]] Buffer passing_gradient(std::uint32_t m) const;
  /// Returns where the layer's output is for the next layer's backward; loads it if it is off the
  /// device.
  Buffer returning_boundary(std::uint32_t layer, std::uint32_t m);
  /// Returns where the layer's output is to be written: its own buffer, or a free slot.
  Buffer place_for_output(std::uint32_t layer, std::uint32_t m);
  /// Returns where the gradient of an output is to be written, likewise.
  Buffer place_for_gradient(std::uint32_t m);
  /// Hands the layer's output to the next layer's forward; in training, saves one whose home is off
  /// the device.
  void pass_boundary(std::uint32_t layer, std::uint32_t m, const Buffer& made, bool train);
  /// Hands the gradient of a layer's output to the layer's backward.
  void pass_gradient(std::uint32_t m, const Buffer& made);

  // Activations inside a block, which its backward needs

  /// Describes the saved activations of a block that leave the device.
  [[nodiscard]] Leaving leaving_saved_activations(std::uint32_t block, std::uint32_t m) const;
  /// Takes a tensor from `made` to its home; to the disk, through a staging buffer.
  void take_away(const Leaving& what, const Buffer& made);
  /// Returns the device buffer of what the block's layer keeps, or the scratch if it recomputes.
  [[nodiscard]] Buffer saved_activations(std::uint32_t block, std::uint32_t m) const;
  /// Returns where backward finds what forward saved, loaded if it is off the device, or where it
  /// saves what it recomputes.
  Buffer returning_saved_activations(std::uint32_t block, std::uint32_t m);

  // Between passes and messages of the stages of a pipeline

  /// Sets aside a round's boundaries, received or made by its pass: they keep their slots while
  /// passes and messages of other rounds go on.
  void put_by(Direction direction, std::uint32_t layer);
  /// Takes the boundaries that `put_by` set aside up again, for the pass that reads them or to send
  /// them.
  void restore_boundary(Direction direction, std::uint32_t layer);
  /// Whether no boundary is set aside.
  [[nodiscard]] bool all_restored() const { return waiting_.empty(); }

 private:
  /// Describes a layer's output off the device.
  [[nodiscard]] Leaving leaving_boundary(std::uint32_t layer, std::uint32_t m) const;
  void append_copy(const Leaving& what, Lane lane, const Buffer& from, const Buffer& to);
  /// Brings a tensor from its home to a device slot, and returns the slot.
  Buffer bring_back(const Leaving& what);

  std::vector<Buffer> passing_;      // by micro-batch: the boundary on its way
  std::map<Value, Buffer> waiting_;  // slots of boundaries between passes and messages of a stage
};

}  // namespace spillway::plan
