// A rank's stage of a pipeline: the layers that it runs, and what it does in turn.
#pragma once

#include <cstdint>
#include <vector>

namespace spillway::plan {

/// A half-open range of blocks.
struct BlockRange {
  std::uint32_t first = 0;
  std::uint32_t end = 0;
  bool operator==(const BlockRange&) const = default;
  [[nodiscard]] bool contains(std::uint32_t block) const { return block >= first && block < end; }
};

enum class Direction : std::uint8_t { forward, backward };

struct Pass {
  Direction direction = Direction::forward;
  std::uint32_t chunk = 0;
  std::uint32_t round = 0;

  bool operator==(const Pass&) const = default;
};

/// One entry of what a stage does in turn.
struct StageEntry {
  enum class Kind : std::uint8_t {
    receive,  ///< what `pass` reads, from stage `peer`
    run,
    send,  ///< what `pass` has made, to stage `peer`
  };
  Kind kind = Kind::run;
  Pass pass;
  std::uint32_t peer = 0;
  /// For a message: whether it carries what a tied head adds to the gradient of the embedding in a
  /// round. The last pass forward makes that, and the end of the last one backward reads it.
  bool tied = false;

  bool operator==(const StageEntry&) const = default;
};

/// A rank's stage of a pipeline: the layers that it runs, and what it does in turn. All else of the
/// workload is that of the model, but blocks of other stages are empty.
struct Stage {
  std::uint32_t count = 1;          ///< stages of the pipeline
  std::vector<BlockRange> chunks;   ///< ranges of layers; none: all layers, one round after another
  std::vector<StageEntry> entries;  ///< of a step, without those of other ranks' replicas
  std::vector<StageEntry> evaluation;  ///< one round forward, and no pass backward
  std::uint32_t in_flight = 1;         ///< rounds whose activations it keeps at once
  std::uint32_t tied_in_flight = 1;    ///< rounds of which it keeps what a tied head adds
  /// Most passes whose boundaries wait, to be read or to be sent, beside those of the running pass.
  std::uint32_t waiting = 0;
  /// Ratio of step time to this stage's busy time, with passes as long as their FLOPs.
  double stretch = 1;
};

/// What a stage has beside, in a pipeline that stays full between steps, or where updates are
/// delayed: passes may use weights from before the last updates, of which the stage has a stash.
/// Empty in every other.
struct StaleStage {
  /// By round: number of updates, counted up to the one a step begins with, that the round's
  /// weights do not have yet. Rounds of later steps that the step begins follow its own.
  std::vector<std::uint32_t> ages;
  std::uint32_t versions = 0;  ///< of its weights that it keeps beside the newest
  std::uint32_t begun = 0;     ///< rounds of the next step that are in flight when a step ends
  /// Place of each round among those in flight, where it is the same in every step; else empty.
  std::vector<std::uint32_t> places;
  /// Number of lists that consecutive steps use in rotation, because the places of rounds and
  /// weight versions shift from step to step. The number of a list in it is its phase.
  std::uint32_t phases = 1;
  std::vector<StageEntry> fill;  ///< ahead of a step that finds the pipeline empty
  /// There is no pipeline: a step's passes do not wait for the update of the step before, and lack
  /// it.
  bool delays_updates = false;

  [[nodiscard]] bool stashes() const { return !ages.empty(); }
  [[nodiscard]] bool stays_full() const { return stashes() && !delays_updates; }
};

/// Whether a stage with that `stretch` (Stage) speaks for its job rather than one with the `other`:
/// it waits less for the other stages, so its estimate of a step is better. Of equals, the first in
/// the pipeline speaks.
[[nodiscard]] constexpr bool speaks_for_job(double stretch, double other) {
  return stretch < other;
}

}  // namespace spillway::plan
