// StateSide: the way of optimizer state between its tier, the update and the disk.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/step/builder/step_draft.hpp"
#include "runtime/plan/step/builder/weights.hpp"

namespace spillway::plan {

/// Whether an update is the one that the step before has decided, or that of this step, which is
/// not decided yet.
enum class UpdateTime : std::uint8_t { pending, ahead };

class StateSide : public OpWriter {
 public:
  /// Begins a list. `records`: state that lives in memory goes to disk after its update.
  StateSide(StepDraft& step, Weights& weights, bool records)
      : OpWriter(step), weights_(weights), records_(records) {
    restart();
  }
  /// Forgets which tiles the last list has staged.
  void restart();

  /// Appends the copy of a block's parameters that passes go on with when its update is over.
  void stash_block(std::uint32_t block);
  /// Appends the pending update of a block, and its new parameters if they live on the device.
  void update_block(std::uint32_t block);
  /// Leaves out the pending updates of speculative blocks, if the step before has made them.
  void find_ahead(bool found) { finds_ahead_ = found; }
  /// Appends the update of a speculative block whose gradient is complete, ahead of the decision.
  /// No effect for other blocks.
  void update_ahead(std::uint32_t block);
  /// Appends the commit of the step, unless some state goes to disk only by a snapshot.
  void append_step_commit();
  /// Appends the first reads of the next step's state.
  void read_ahead();
  /// Writes what does not live on disk, and commits.
  void snapshot();

 private:
  void update_tile(std::uint32_t tile);
  Buffer stage_tile(std::uint32_t tile, UpdateTime when);
  void append_update(std::uint32_t tile, const Buffer& state, UpdateTime when);
  /// Brings a tile that lives in memory to its spare slot on disk.
  void record_tile(std::uint32_t tile);
  void write_tile(std::uint32_t tile, const Buffer& state, UpdateTime when);
  [[nodiscard]] Value parameters_after(std::uint32_t block, UpdateTime when) const;
  /// Appends a commit, which waits for all that is written.
  void append_commit();
  [[nodiscard]] bool keeps_parameters_with_state() const {
    return placement_.format != StateFormat::fp32;
  }

  Weights& weights_;
  const bool records_;
  bool finds_ahead_ = false;
  std::vector<std::uint32_t> staged_tile_;  // by staging buffer: the last tile in it
  std::uint32_t staging_visits_ = 0;        // of tiles that live on disk: `read_ahead` counts on it
  std::uint32_t record_visits_ = 0;
};

}  // namespace spillway::plan
