// RunReader: a run, read only: its configuration, its last committed step and the masters in it.
// For evaluation, generation and export. Takes no lock: a process that trains the run goes on.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "nvme_swap/committed_tiles.hpp"
#include "offload/memory.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/run/directory.hpp"
#include "runtime/engine/step/state_slots.hpp"
#include "runtime/engine/training_state.hpp"
#include "runtime/model/parameter_layout.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::engine {

/// The run has gone on and written over what was being read of its commit: begin again.
class Overtaken final : public Error {
 public:
  explicit Overtaken(const std::filesystem::path& run);
};

/// What `work` returns, which reads a run: called again when it was overtaken, a few times.
template <class Work>
auto retry_overtaken(const Work& work) {
  constexpr int kAttempts = 8;
  for (int attempt = 1;; ++attempt) {
    try {
      return work();
    } catch (const Overtaken&) {
      if (attempt == kAttempts) throw;
    }
  }
}

class RunReader final : public model::ParameterSource {
 public:
  /// Throws `Error{invalid_argument}` if there is no run or no committed step,
  /// `Error{corrupt_data}` if its state is missing or not what was written.
  explicit RunReader(const std::filesystem::path& run);

  [[nodiscard]] const RunManifest& manifest() const { return manifest_; }
  [[nodiscard]] const RunConfig& config() const { return config_; }
  [[nodiscard]] const model::ModelLayout& layout() const { return layout_; }
  [[nodiscard]] const TrainingState& state() const { return state_; }
  /// Returns the host memory that reading takes: a tile as it lies on disk, and its masters.
  [[nodiscard]] Bytes reading_bytes() const { return reading_bytes_; }
  /// Returns the tiles, to copy all of the committed state from; see Trainer::adopt.
  [[nodiscard]] const nvme_swap::CommittedTiles& tiles() const { return *tiles_; }
  /// Reads masters of the last committed step, every checksum verified. One call at a time. Throws
  /// `Overtaken`.
  void read(BlockIndex block, ElementCount first, std::span<float> target) const override;

 private:
  std::filesystem::path root_;
  RunManifest manifest_;
  RunConfig config_;
  model::ModelLayout layout_;
  TrainingState state_;
  StateSlots slots_;
  std::unique_ptr<offload::DeviceBackend> backend_;
  offload::PinnedMemory staging_;
  Bytes reading_bytes_;
  std::unique_ptr<nvme_swap::CommittedTiles> tiles_;
};

}  // namespace spillway::engine
