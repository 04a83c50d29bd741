#include "runtime/plan/pipeline/timeline.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <tuple>

#include "runtime/base/error.hpp"

namespace spillway::plan {
namespace {

/// A pass and the stage that it runs on.
struct Place {
  std::uint32_t stage;
  Pass pass;
};

/// Returns what makes the input of a pass; nothing for the first one forward of a round.
std::optional<Place> source_of(const Pipeline& pipeline, const Place& place) {
  const auto [stage, pass] = place;
  const std::uint32_t parts = pipeline.stages * pipeline.chunks;
  const std::uint32_t part = pass.chunk * pipeline.stages + stage;
  const auto at = [&](Direction direction, std::uint32_t source) {
    return Place{source % pipeline.stages, {direction, source / pipeline.stages, pass.round}};
  };
  if (pass.direction == Direction::backward) {
    if (part + 1 == parts) return at(Direction::forward, part);
    return at(Direction::backward, part + 1);
  }
  if (part == 0) return std::nullopt;
  return at(Direction::forward, part - 1);
}

/// Returns the last pass that needs the place where the input of `pass` comes to; nothing where the
/// place is new.
std::optional<Pass> last_in_place(const Pass& pass, std::uint32_t in_flight) {
  if (pass.round < in_flight) return std::nullopt;
  return Pass{Direction::backward, pass.chunk, pass.round - in_flight};
}

/// Number of rounds up to the last one that has a pass.
std::uint32_t rounds_of(const std::vector<std::vector<Pass>>& passes) {
  std::uint32_t rounds = 0;
  for (const std::vector<Pass>& of_stage : passes) {
    for (const Pass& pass : of_stage) rounds = std::max(rounds, pass.round + 1);
  }
  return rounds;
}

/// The time of each pass, found by the pass.
class Times {
 public:
  Times(const Pipeline& pipeline, const std::vector<std::vector<Pass>>& passes)
      : pipeline_(pipeline),
        rounds_(rounds_of(passes)),
        times_(std::size_t{2} * pipeline.stages * pipeline.chunks * rounds_, PassTime{}) {
    for (std::uint32_t stage = 0; stage < pipeline.stages; ++stage) {
      for (const Pass& pass : passes[stage]) of({stage, pass}).reset();
    }
  }

  /// Returns nullopt for a pass not yet run, and time 0 for one outside these passes.
  std::optional<PassTime>& of(const Place& place) {
    const auto [stage, pass] = place;
    std::size_t index = pass.direction == Direction::forward ? 0 : 1;
    index = index * pipeline_.stages + stage;
    index = index * pipeline_.chunks + pass.chunk;
    return times_[index * rounds_ + pass.round];
  }

 private:
  const Pipeline& pipeline_;
  std::uint32_t rounds_;
  std::vector<std::optional<PassTime>> times_;
};

/// The entries of each stage, with the times that order them. At equal times, messages come first,
/// in an order that all stages know: by the stage and the pass that made them.
class TimedEntries {
 public:
  TimedEntries(const Pipeline& pipeline, const std::vector<std::vector<Pass>>& passes,
               const Timeline& timeline)
      : pipeline_(pipeline), passes_(passes), timeline_(timeline), timed_(pipeline.stages) {}

  /// Adds the passes of a stage, and the messages with what they read.
  void add_passes(std::uint32_t stage) {
    const std::uint32_t in_flight = rounds_in_flight(passes_[stage]);
    for (std::uint32_t i = 0; i < passes_[stage].size(); ++i) {
      const Place place{stage, passes_[stage][i]};
      timed_[stage].push_back(
          {timeline_[stage][i].start, true, stage, i, {Kind::run, place.pass, stage}});
      const std::optional<Place> source = source_of(pipeline_, place);
      if (!source || source->stage == stage) continue;
      const double time = ready(*source, stage, last_in_place(place.pass, in_flight));
      add_message(time, *source, {Kind::receive, place.pass, source->stage}, stage);
    }
  }

  /// Adds the messages with what a tied head on the last stage adds to the embedding's gradient.
  void add_tied_gradients() {
    const std::uint32_t last = pipeline_.stages - 1;
    for (std::uint32_t round = 0; round < pipeline_.rounds; ++round) {
      const Place head{last, {Direction::forward, pipeline_.chunks - 1, round}};
      const Pass embedding{Direction::backward, 0, round};
      const double time = ready(head, 0, last_in_place(embedding, 1));
      add_message(time, head, {Kind::receive, embedding, last, /*tied=*/true}, 0);
    }
  }

  [[nodiscard]] std::vector<std::vector<StageEntry>> in_order() {
    std::vector<std::vector<StageEntry>> entries(pipeline_.stages);
    for (std::uint32_t stage = 0; stage < pipeline_.stages; ++stage) {
      std::ranges::sort(timed_[stage], {}, [](const Timed& t) {
        return std::tuple{t.time, t.runs, t.maker, t.number};
      });
      for (const Timed& t : timed_[stage]) entries[stage].push_back(t.entry);
    }
    return entries;
  }

 private:
  using Kind = StageEntry::Kind;
  struct Timed {
    double time;
    bool runs;
    std::uint32_t maker;
    std::uint32_t number;  ///< of the maker's pass
    StageEntry entry;
  };

  [[nodiscard]] std::uint32_t number_of(const Place& place) const {
    const std::vector<Pass>& of_stage = passes_[place.stage];
    return static_cast<std::uint32_t>(std::ranges::find(of_stage, place.pass) - of_stage.begin());
  }
  [[nodiscard]] double end_of(const Place& place) const {
    return timeline_[place.stage][number_of(place)].end;
  }
  /// Returns when a message can go: `source` has made it, and `before`, the last pass of the stage
  /// it goes to that needs its place there, is over.
  [[nodiscard]] double ready(const Place& source, std::uint32_t stage,
                             const std::optional<Pass>& before) const {
    const double made = end_of(source);
    return before ? std::max(made, end_of({stage, *before})) : made;
  }
  /// Adds what `source` sends to a stage, which has `received` of it.
  void add_message(double time, const Place& source, const StageEntry& received,
                   std::uint32_t stage) {
    const std::uint32_t number = number_of(source);
    timed_[stage].push_back({time, false, source.stage, number, received});
    timed_[source.stage].push_back(
        {time, false, source.stage, number, {Kind::send, source.pass, stage, received.tied}});
  }

  const Pipeline& pipeline_;
  const std::vector<std::vector<Pass>>& passes_;
  const Timeline& timeline_;
  std::vector<std::vector<Timed>> timed_;  // by stage
};

}  // namespace

Timeline timeline_of(const Pipeline& pipeline, const std::vector<std::vector<Pass>>& passes,
                     const std::vector<StageSeconds>& seconds, double message) {
  Times times(pipeline, passes);
  Timeline timeline(pipeline.stages);
  /// Runs the next pass of a stage if what it reads has been made.
  const auto run_next = [&](std::uint32_t stage) {
    std::vector<PassTime>& done = timeline[stage];
    if (done.size() == passes[stage].size()) return false;
    const Place place{stage, passes[stage][done.size()]};
    double start = done.empty() ? 0 : done.back().end;
    if (const std::optional<Place> source = source_of(pipeline, place)) {
      const std::optional<PassTime>& made = times.of(*source);
      if (!made) return false;
      start = std::max(start, made->end + (source->stage == stage ? 0 : message));
    }
    const StageSeconds& of_stage = seconds[stage];
    const bool forward = place.pass.direction == Direction::forward;
    const double lasts = (forward ? of_stage.forward : of_stage.backward)[place.pass.chunk];
    times.of(place) = done.emplace_back(start, start + lasts);
    return true;
  };
  for (bool any = true; any;) {
    any = false;
    for (std::uint32_t stage = 0; stage < pipeline.stages; ++stage) {
      while (run_next(stage)) any = true;
    }
  }
  for (std::uint32_t stage = 0; stage < pipeline.stages; ++stage) {
    check(timeline[stage].size() == passes[stage].size(), ErrorCode::invalid_argument,
          "the passes of a pipeline wait for each other");
  }
  return timeline;
}

double seconds_of(const Timeline& timeline) {
  double seconds = 0;
  for (const std::vector<PassTime>& stage : timeline) {
    if (!stage.empty()) seconds = std::max(seconds, stage.back().end);
  }
  return seconds;
}

std::vector<std::vector<StageEntry>> entries_of(const Pipeline& pipeline,
                                                const std::vector<std::vector<Pass>>& passes,
                                                const Timeline& timeline) {
  TimedEntries entries(pipeline, passes, timeline);
  for (std::uint32_t stage = 0; stage < pipeline.stages; ++stage) entries.add_passes(stage);
  if (pipeline.tied_head && pipeline.stages > 1) entries.add_tied_gradients();
  return entries.in_order();
}

}  // namespace spillway::plan
