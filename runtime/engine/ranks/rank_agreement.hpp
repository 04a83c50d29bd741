// What the ranks of a job agree on before and between its steps, so that all of them do the same.
// Each function is called by every rank. Control thread only.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/ranks/rank_groups.hpp"
#include "runtime/engine/run/claim.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Returns the name by which ranks know that they share a machine: the host's, and behind its end
/// the number of this start of the system, since machines may have one name.
using MachineName = std::array<char, 256>;
[[nodiscard]] MachineName machine_name();

/// Returns the largest value of all ranks.
[[nodiscard]] std::uint64_t largest_of(RankGroups& ranks, std::uint64_t mine);

/// Returns the seconds of a step of all stages. A stage that works for `seconds` says `stretch`
/// times as many (plan::Stage), and the one that waits least for others is the most right.
[[nodiscard]] double seconds_of_job(RankGroups& ranks, double stretch, double seconds);

/// Returns the GPU of this rank, as CUDA numbers those that it shows, and makes it current on this
/// thread: the ranks of a machine have one each, in their order. 0 for a rank that trains on the
/// host. Throws `Error{invalid_argument}` that names two ranks where they have the same one.
[[nodiscard]] int gpu_of_rank(RankGroups& ranks, config::DeviceKind device);

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

/// Returns the step from which the job goes on, the least that is the last committed one of a rank;
/// nothing if the job begins. Ranks whose first commit some others did not reach begin again.
/// Throws `Error{corrupt_data}` where a rank has lost its state or has that of another job,
/// `Error{invalid_argument}` where the job goes on and was not told to.
[[nodiscard]] std::optional<StepIndex> agree_on_start(RankGroups& ranks, RunClaim& claim);

/// Prepares the state of every rank, in an order in which a kill leaves nothing that the next start
/// could not tell from lost state, and makes them ranks of one job.
void prepare_state(RankGroups& ranks, RunClaim& claim,
                   const std::vector<std::filesystem::path>& nvme);
/// Records what every rank is. Rank 0 does first: what others name must be there.
void record(RankGroups& ranks, RunClaim& claim, RunConfig& config);

/// Throws `Error{busy}` on the ranks that have taken another step than rank 0 from the run in
/// `from`, which another process trains.
void check_same_step(RankGroups& ranks, const std::filesystem::path& from, StepIndex step);

/// Returns the least of each budget.
[[nodiscard]] plan::Budgets least(RankGroups& ranks, const plan::Budgets& mine);
/// Measures the links between ranks, and returns the slowest of each value.
[[nodiscard]] plan::MachineProfile slowest(RankGroups& ranks, plan::MachineProfile mine);

}  // namespace spillway::engine
