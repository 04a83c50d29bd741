// StateSide: the way of optimizer state between its tier, the update and the disk.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/step/builder/step_draft.hpp"
#include "runtime/plan/step/builder/weights.hpp"

namespace spillway::plan {

class StateSide : public StepPart {
 public:
  /// Begins a list. `records`: state that lives in memory goes to disk after its update.
  StateSide(StepDraft& step, Weights& weights, bool records)
      : StepPart(step), weights_(weights), records_(records) {
    restart();
  }
  void restart();

  void stash_block(std::uint32_t block);
  void update_block(std::uint32_t block);
  void append_step_commit();
  void read_ahead();
  void snapshot();

 private:
  void update_tile(std::uint32_t tile);
  void record_tile(std::uint32_t tile);
  void write_tile(std::uint32_t tile, const Buffer& state);
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
