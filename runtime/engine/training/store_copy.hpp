// StoreCopy: a store of its own that gets the state after one step, is closed, and is read once
// more to know that it is whole. Control thread only, between plans.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "nvme_swap/tile_store.hpp"
#include "runtime/engine/step/step_engine.hpp"
#include "runtime/engine/training/state_io.hpp"

namespace spillway::engine {

class StoreCopy {
 public:
  /// Both outlive this object.
  StoreCopy(StepEngine& engine, StateIo& state_io) : engine_(engine), state_io_(state_io) {}

  /// Creates the store as `options` say, on the run's I/O engine.
  void begin(const nvme_swap::StoreOptions& options);
  /// Returns the store of the copy under way, or null.
  [[nodiscard]] nvme_swap::TileStore* store() const { return store_.get(); }
  /// Fills the store with the newest version of all tiles, commits it there, and closes it.
  void fill(const nvme_swap::CommitHeader& commit);
  /// Closes the store, which has been filled, and reads all of it.
  void close();
  /// Ends the copy under way, if there is one, with nothing that counts.
  void abandon() { store_.reset(); }
  /// Returns the step of the last copy that was closed; nothing since the next one began.
  [[nodiscard]] std::optional<std::uint64_t> step() const { return step_; }

 private:
  StepEngine& engine_;
  StateIo& state_io_;
  nvme_swap::StoreOptions options_;  ///< of the last one
  std::unique_ptr<nvme_swap::TileStore> store_;
  std::optional<std::uint64_t> step_;
};

}  // namespace spillway::engine
