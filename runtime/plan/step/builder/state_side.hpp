// StateSide: the way of optimizer state between its tier, the update and the disk.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/step/builder/step_draft.hpp"
#include "runtime/plan/step/builder/weights.hpp"

namespace spillway::plan {

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
  /// Appends the commit of the step, unless some state goes to disk only by a snapshot.
  void append_step_commit();
  /// Appends the first reads of the next step's state.
  void read_ahead();
  /// Writes what does not live on disk, and commits.
  void snapshot();

 private:
  void update_tile(std::uint32_t tile);
  /// Brings a tile that lives in memory to its spare slot on disk.
  void record_tile(std::uint32_t tile);
  void write_tile(std::uint32_t tile, const Buffer& state);
  /// Appends a commit, which waits for all that is written.
  void append_commit();
  [[nodiscard]] bool keeps_parameters_with_state() const {
    return placement_.format != StateFormat::fp32;
  }

  Weights& weights_;
  const bool records_;
  std::vector<std::uint32_t> staged_tile_;  // by staging buffer: the last tile in it
  std::uint32_t staging_visits_ = 0;        // of tiles that live on disk: `read_ahead` counts on it
  std::uint32_t record_visits_ = 0;
};

}  // namespace spillway::plan
