// KeptCheckpoints: copies of committed steps that outlive later commits, in
// RUN/checkpoints/step-N. Each is a run directory of its own, complete once its manifest.json is
// there, which is written last: `eval`, `generate`, `export` and `info` read it as they read a run,
// and `train --from` continues it in a new run. Each of many ranks keeps its part in the folder
// that it would have in a run, and rank 0 completes the checkpoint when all parts are whole.
// Control thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "runtime/engine/ranks/rank_groups.hpp"
#include "runtime/engine/run/directory.hpp"
#include "runtime/engine/training/trainer.hpp"

namespace spillway::engine {

class KeptCheckpoints {
 public:
  struct Options {
    RunId id{};                    ///< of this rank's run
    RunId job{};                   ///< as its manifest has it
    std::uint64_t save_every = 0;  ///< one is kept every so many steps; 0: never
    std::uint32_t keep = 0;        ///< the newest are kept, so many
    RankPart part{};               ///< whose part of the state it is
  };
  /// Borrows `ranks`; each of them makes the same calls. `job`: the run directory of rank 0.
  KeptCheckpoints(RunDirectory job, RankGroups& ranks, const Options& options)
      : run_(std::move(job)), ranks_(ranks), options_(options) {}

  /// Throws `Error{does_not_fit}` unless the disk has the space for all that will be kept at once.
  void check_space(const nvme_swap::StoreLayout& layout) const;
  /// Whether the step is to be kept and is not kept yet.
  [[nodiscard]] bool due(std::uint64_t step);
  /// Makes the trainer copy the step that it has just taken, while it takes the next one. An
  /// interrupted copy has no manifest and is removed by the next.
  void start(Trainer& trainer);
  struct Saved {
    std::uint64_t step = 0;
    std::filesystem::path directory;
  };
  /// Completes the copy that was started, if there is one and every byte of it is known to be on
  /// the disk, and then removes what is no longer kept. Waits for the other ranks' parts.
  std::optional<Saved> finish(const Trainer& trainer, const RunConfig& config);

  /// Returns the steps that are kept in `run`, ascending.
  [[nodiscard]] static std::vector<std::uint64_t> steps(const RunDirectory& run);
  /// Returns the kept checkpoints themselves, in that order.
  [[nodiscard]] static std::vector<RunDirectory> in(const RunDirectory& run);

 private:
  [[nodiscard]] static RunDirectory at(const RunDirectory& run, std::uint64_t step);
  /// Returns the folder of this rank's part.
  [[nodiscard]] RunDirectory part_at(std::uint64_t step) const;
  void remove_old() const;

  RunDirectory run_;
  RankGroups& ranks_;
  Options options_;
  std::optional<std::uint64_t> started_;  ///< the step of the copy under way
};

}  // namespace spillway::engine
