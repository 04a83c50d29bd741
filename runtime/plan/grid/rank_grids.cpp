#include "runtime/plan/grid/rank_grids.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "runtime/base/divisors.hpp"

namespace spillway::plan {
namespace {

constexpr std::uint32_t kMostZeroStage = 3;

/// Beyond these, the timelines of all choices on a grid take many seconds.
constexpr std::uint64_t kMostPasses = 262'144;

/// Returns why the work does not divide among so many ranks; empty: it does.
std::string why_not(const GridWork& work, std::uint32_t tensor, std::uint32_t replicas,
                    std::uint32_t stages) {
  if (work.heads % tensor != 0 || work.kv_heads % tensor != 0) {
    return fmt::format("{} heads and {} of keys do not divide among {} ranks", work.heads,
                       work.kv_heads, tensor);
  }
  if (work.micro_batches % replicas != 0) {
    return fmt::format("{} micro-batches do not divide among {} replicas", work.micro_batches,
                       replicas);
  }
  const std::uint64_t rounds = work.micro_batches / replicas;
  if (const std::uint64_t passes = 2 * rounds * stages * work.chunks; passes > kMostPasses) {
    return fmt::format("{} passes are more than the {} that can be estimated", passes, kMostPasses);
  }
  if (stages == 1) return "";
  const std::uint64_t parts = std::uint64_t{stages} * work.chunks;
  if (work.workload.layers() < parts) {
    return fmt::format("{} layers, embedding and head counted, are fewer than {} parts",
                       work.workload.layers(), parts);
  }
  if (work.schedule == PipelineSchedule::interleaved && rounds % stages != 0) {
    return fmt::format(
        "an interleaved pipeline of {} stages needs a multiple of them, not {} rounds", stages,
        rounds);
  }
  return "";
}

/// Returns the ways to use a grid that differ in what the search chooses.
std::vector<GridChoice> choices_on(std::uint32_t tensor, std::uint32_t replicas,
                                   std::uint32_t stages, bool one_dimension) {
  std::vector<GridChoice> choices;
  for (const TensorCut& cut : cuts_among(tensor)) {
    const bool flat = cut.method == TensorMethod::columns || cut.method == TensorMethod::sequence;
    if (one_dimension && !flat) continue;
    for (std::uint32_t zero = 0; zero <= (replicas > 1 ? kMostZeroStage : 0); ++zero) {
      for (const bool keeps : {true, false}) {
        choices.push_back({cut, replicas, stages, zero, keeps});
      }
    }
  }
  return choices;
}

class Ranker {
 public:
  Ranker(const GridWork& work, const GridMachine& machine, const GridSearch& search)
      : work_(work), machine_(machine), search_(search) {}

  void try_grid(std::uint32_t tensor, std::uint32_t replicas, std::uint32_t stages) {
    const GridChoice plain{{TensorMethod::columns, tensor}, replicas, stages};
    if (const std::string reason = why_not(work_, tensor, replicas, stages); !reason.empty()) {
      found_.dropped.push_back({plain, 0, reason});
      return;
    }
    const GridPipeline pipeline = pipeline_on(work_, replicas, stages);
    std::optional<RankedGrid> best;
    std::optional<DroppedGrid> least;
    for (const GridChoice& choice : choices_on(tensor, replicas, stages, search_.one_dimension)) {
      const GridMemory memory = memory_on(work_, pipeline, choice);
      if (!least || memory.total() < least->bytes) least = DroppedGrid{choice, memory.total(), {}};
      if (memory.total() > static_cast<double>(machine_.device.value())) continue;
      const GridSeconds seconds = seconds_on(work_, pipeline, machine_, choice);
      if (!best || seconds.step() < best->seconds.step()) best = {choice, memory, seconds};
    }
    if (best) {
      found_.fitting.push_back(*best);
      return;
    }
    least->reason = fmt::format("needs {:.1f} GB of {:.1f} GB at least", least->bytes * 1e-9,
                                static_cast<double>(machine_.device.value()) * 1e-9);
    found_.dropped.push_back(*least);
  }

  GridRanking take() {
    std::ranges::stable_sort(found_.fitting, {},
                             [](const RankedGrid& grid) { return grid.seconds.step(); });
    std::ranges::stable_sort(found_.dropped, {}, [](const DroppedGrid& grid) {
      return std::pair(grid.bytes == 0, grid.bytes);
    });
    return std::move(found_);
  }

 private:
  const GridWork& work_;
  const GridMachine& machine_;
  const GridSearch& search_;
  GridRanking found_;
};

}  // namespace

GridRanking rank_grids(const GridWork& work, const GridMachine& machine, const GridSearch& search) {
  Ranker grids(work, machine, search);
  for (const std::uint32_t tensor : divisors_of(search.ranks)) {
    const bool inside = tensor <= machine.gpus && machine.gpus % tensor == 0;
    if (!inside && !search.across) continue;
    const std::uint32_t rest = search.ranks / tensor;
    for (const std::uint32_t stages : divisors_of(rest)) {
      grids.try_grid(tensor, rest / stages, stages);
    }
  }
  return grids.take();
}

}  // namespace spillway::plan
