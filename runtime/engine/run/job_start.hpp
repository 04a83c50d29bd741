// How the ranks of a job start a run together: they compare what they are about to do, agree on the
// step from which they go on, and record what each of them is. Every rank calls each function.
// Control thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/ranks/rank_groups.hpp"
#include "runtime/engine/run/claim.hpp"

namespace spillway::engine {

/// What ranks compare beside the configuration of their run.
struct RunSources {
  std::filesystem::path run{};               ///< the directory of the job
  std::string weights{};                     ///< where they come from, and what tells them apart
  std::uint64_t validation_fingerprint = 0;  ///< 0: no validation tokens
};

/// Throws `Error{invalid_argument}` that names the first rank whose program, data, model, options
/// or sources differ from those of rank 0, and both values. What a rank may have of its own is not
/// compared: threads, drives, budgets.
void check_same_run(RankGroups& ranks, const RunConfig& config, const RunSources& sources);

/// Returns the step from which the job goes on, the least of the ranks' last committed ones;
/// nothing if the job begins. Ranks whose first commit some others did not reach begin again.
/// Throws `Error{corrupt_data}` where a rank has lost its state or has that of another job,
/// `Error{invalid_argument}` where the job goes on and was not told to.
[[nodiscard]] std::optional<StepIndex> agree_on_start(RankGroups& ranks, RunClaim& claim);

/// Prepares the state of every rank, in an order in which a kill leaves nothing that the next start
/// could not tell from lost state, and makes them ranks of one job.
void prepare_state(RankGroups& ranks, RunClaim& claim,
                   const std::vector<std::filesystem::path>& nvme);
/// Records what every rank is. Rank 0 comes first: others name its id.
void record(RankGroups& ranks, RunClaim& claim, RunConfig& config);

/// Throws `Error{busy}` on the ranks that have taken another step than rank 0 from the run in
/// `from`, which another process trains.
void check_same_step(RankGroups& ranks, const std::filesystem::path& from, StepIndex step);

}  // namespace spillway::engine
