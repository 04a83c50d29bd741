// RunReader: a finished or paused run, read only: its configuration, its last committed step and
// the masters in it. For evaluation, generation and export. Holds the run's lock.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "nvme_swap/tile_store.hpp"
#include "offload/memory.hpp"
#include "runtime/engine/run_directory.hpp"
#include "runtime/engine/state_slots.hpp"
#include "runtime/engine/training_state.hpp"
#include "runtime/model/parameter_layout.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::engine {

class RunReader final : public model::ParameterSource {
 public:
  /// Throws `Error{invalid_argument}` if there is no run or no committed step, `Error{busy}` while
  /// a process trains it, `Error{corrupt_data}` if its state is not what was written.
  explicit RunReader(const std::filesystem::path& run);

  [[nodiscard]] const RunConfig& config() const { return config_; }
  [[nodiscard]] const model::ModelLayout& layout() const { return layout_; }
  [[nodiscard]] const TrainingState& state() const { return state_; }
  /// To copy all of the committed state from; see Trainer::adopt.
  [[nodiscard]] nvme_swap::TileStore& store() const { return *store_; }
  /// Masters of the last committed step, every checksum verified. One call at a time.
  void read(BlockIndex block, ElementCount first, std::span<float> target) const override;

 private:
  RunConfig config_;
  model::ModelLayout layout_;
  TrainingState state_;
  StateSlots slots_;
  std::unique_ptr<offload::DeviceBackend> backend_;
  offload::PinnedMemory staging_;
  std::unique_ptr<nvme_swap::TileStore> store_;
};

}  // namespace spillway::engine
