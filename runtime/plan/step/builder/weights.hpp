// Weights: how a pass gets the parameters of a block: where they stay on the device, by an upload,
// or gathered from other ranks, which have updated them in parts. Every rank has the same list, so
// that all start the same collectives in the same order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/plan/step/builder/step_draft.hpp"

namespace spillway::plan {

class Weights : public OpWriter {
 public:
  explicit Weights(StepDraft& step) : OpWriter(step) { restart(); }
  /// Forgets what the last list has gathered.
  void restart();

  /// Returns where the block's parameters are on the device; uploads or gathers them if they are
  /// streamed. The caller gives the buffer back.
  Buffer bring_parameters(std::uint32_t block);
  /// Uploads the frozen parameters of a streamed block, by way of a staging buffer if they are on
  /// disk, and returns their slot.
  Buffer bring_frozen(std::uint32_t block);
  /// Declares that the op reads the vectors of tiles. No effect without tiles.
  void read_vectors(OpDraft& draft) const;
  /// Uploads a resident block that the host has updated; where each rank has updated a part,
  /// gathers the parts of all.
  void refresh_residents(std::uint32_t block);
  /// Gathers the blocks that backward visits after `visited`, as many as there are slots beside its
  /// own.
  void gather_ahead(std::uint32_t visited);
  /// Gathers no block below this one ahead of backward, which ends here.
  void gather_until(std::uint32_t block) { ahead_until_ = block; }

 private:
  /// Whether an op runs in every step, or only if an update is pending.
  enum class Needed : std::uint8_t { always, after_update };
  /// Uploads this rank's part of a block's parameters; for a pass, the version that it uses.
  void upload_parameters(std::uint32_t block, const Buffer& target, Needed needed);
  void copy_frozen(std::uint32_t block, Lane lane, const Buffer& from, const Buffer& to);
  /// Makes a block's parameters whole from the shards of all ranks.
  void gather(std::uint32_t block, const Buffer& shard, const Buffer& whole, Needed needed);
  /// Keeps this rank's part of a gathered block on the host for the next visits of the step.
  void keep_secondary(std::uint32_t block, const Buffer& whole);
  /// Gathers a block from the parts that the node's ranks have kept, and returns its slot.
  Buffer gather_on_node(std::uint32_t block);
  /// Returns a slot with the whole block, for the passes of one visit.
  Buffer gather_for_pass(std::uint32_t block);

  std::vector<std::optional<Buffer>> ahead_;  // by block: gathered for its backward
  std::vector<bool> secondary_;               // by block: the node has kept it in this step
  std::uint32_t ahead_until_ = 1;             // the last block that is gathered ahead of backward
};

}  // namespace spillway::plan
