// Weights: how a pass gets the parameters of a block: where they stay on the device, by an upload,
// or gathered from other ranks, which have updated them in parts. Every rank has the same list, so
// that all start the same collectives in the same order.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/plan/step/builder/step_draft.hpp"

namespace spillway::plan {

class Weights : public StepPart {
 public:
  explicit Weights(StepDraft& step) : StepPart(step) { restart(); }
  void restart();

  Buffer bring_parameters(std::uint32_t block);
  Buffer bring_frozen(std::uint32_t block);
  void read_vectors(OpDraft& draft) const;
  void refresh_residents(std::uint32_t block);
  void gather_ahead(std::uint32_t visited);
  /// Gathers no block below this one ahead of backward, which ends here.
  void gather_until(std::uint32_t block) { ahead_until_ = block; }

 private:
  enum class Needed : std::uint8_t { always, after_update };
  void upload_parameters(std::uint32_t block, const Buffer& target, Needed needed);
  void gather(std::uint32_t block, const Buffer& shard, const Buffer& whole, Needed needed);
  void keep_secondary(std::uint32_t block, const Buffer& whole);
  Buffer gather_on_node(std::uint32_t block);
  Buffer gather_for_pass(std::uint32_t block);

  std::vector<std::optional<Buffer>> ahead_;  // by block: gathered for its backward
  std::vector<bool> secondary_;               // by block: the node has kept it in this step
  std::uint32_t ahead_until_ = 1;             // the last block that is gathered ahead of backward
};

}  // namespace spillway::plan
