// KeptCheckpoints: copies of committed steps that outlive later commits, in
// RUN/checkpoints/step-N. Each is a run directory of its own, complete once its manifest.json is
// there, which is written last: `eval`, `generate`, `export` and `info` read it as they read a run,
// and `train --from` continues it in a new run. Control thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "runtime/engine/run/directory.hpp"
#include "runtime/engine/trainer.hpp"

namespace spillway::engine {

class KeptCheckpoints {
 public:
  /// Keeps one every `save_every` steps (0: never), and the newest `keep` of them.
  KeptCheckpoints(RunDirectory run, const RunId& id, std::uint64_t save_every, std::uint32_t keep)
      : run_(std::move(run)), id_(id), save_every_(save_every), keep_(keep) {}

  /// Throws `Error{does_not_fit}` unless the disk has the space for all that will be kept at once.
  void check_space(const nvme_swap::StoreLayout& layout) const;
  /// The step is one to keep and is not kept yet.
  [[nodiscard]] bool due(std::uint64_t step) const;
  /// Has the trainer copy the step that it has just taken, while it takes the next one. An
  /// interrupted copy has no manifest and is removed by the next.
  void start(Trainer& trainer);
  struct Saved {
    std::uint64_t step = 0;
    std::filesystem::path directory;
  };
  /// Completes the copy that was started and is over, if there is one, and removes what is no
  /// longer kept.
  std::optional<Saved> finish(const Trainer& trainer, const RunConfig& config);

  /// Steps that are kept in `run`, ascending.
  [[nodiscard]] static std::vector<std::uint64_t> steps(const RunDirectory& run);
  /// Returns the kept checkpoints themselves, in that order.
  [[nodiscard]] static std::vector<RunDirectory> in(const RunDirectory& run);

 private:
  [[nodiscard]] static RunDirectory at(const RunDirectory& run, std::uint64_t step);
  void remove_old() const;

  RunDirectory run_;
  RunId id_;
  std::uint64_t save_every_;
  std::uint32_t keep_;
  std::optional<std::uint64_t> started_;  ///< the step of the copy under way
};

}  // namespace spillway::engine
