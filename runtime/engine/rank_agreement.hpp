// What the ranks of a job agree on before and between its steps, so that all of them do the same.
// Each function is called by every rank; without a communicator there is one rank, which agrees
// with itself. Control thread only.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "runtime/engine/run/claim.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Returns whether this rank writes what the job tells of itself.
[[nodiscard]] bool leads(const comm::Communicator* ranks);

/// Calls `body`. If it throws, the other ranks hear why before anything of this rank goes: what it
/// has on a GPU could not tell.
template <class Body>
auto telling_others(comm::Communicator* ranks, Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    if (ranks != nullptr) ranks->abandon(error.what());
    throw;
  }
}

enum class Vote : std::uint8_t { no, yes };

/// What ranks vote on while they train. Only the constructor allocates.
class Votes {
 public:
  /// `ranks` outlives this object.
  explicit Votes(comm::Communicator* ranks);

  /// Returns whether rank 0 votes yes.
  [[nodiscard]] bool first_says(Vote mine) { return gather(mine).front() == Vote::yes; }
  /// Returns whether any rank votes yes.
  [[nodiscard]] bool any_says(Vote mine);

 private:
  [[nodiscard]] std::span<const Vote> gather(Vote mine);

  comm::Communicator* ranks_;
  std::vector<Vote> all_;  // by rank
};

/// Returns what rank 0 gives, once it does.
std::uint64_t value_of_first(comm::Communicator& ranks, std::uint64_t mine);

/// Returns the largest value of all ranks, or `mine` where there is one process.
[[nodiscard]] std::uint64_t largest_of(comm::Communicator* ranks, std::uint64_t mine);

/// Returns the seconds of a step of all stages. A stage that works for `seconds` says `stretch`
/// times as many (plan::Stage), and the one that waits least for others is the most right.
[[nodiscard]] double seconds_of_job(comm::Communicator* ranks, double stretch, double seconds);

/// Returns the GPU of this rank, as CUDA numbers those that it shows, and makes it current on this
/// thread: the ranks of a machine have one each, in their order. 0 for a rank that trains on the
/// host. Throws `Error{invalid_argument}` that names two ranks where they have the same one.
[[nodiscard]] int gpu_of_rank(comm::Communicator& ranks, config::DeviceKind device);

/// What ranks compare beside the configuration of their run.
struct RunSources {
  std::filesystem::path run{};               ///< the directory of the job
  std::string weights{};                     ///< where they come from, and what tells them apart
  std::uint64_t validation_fingerprint = 0;  ///< 0: no validation tokens
};

/// Throws `Error{invalid_argument}` that names the first rank whose program, data, model, options
/// or sources differ from those of rank 0, and both values. What a rank may have of its own is not
/// compared: threads, drives, budgets.
void check_same_run(comm::Communicator* ranks, const RunConfig& config, const RunSources& sources);

/// Returns the step from which the job goes on, the least that is the last committed one of a rank;
/// nothing if the job begins. Ranks whose first commit some others did not reach begin again.
/// Throws `Error{corrupt_data}` where a rank has lost its state or has that of another job,
/// `Error{invalid_argument}` where the job goes on and was not told to.
[[nodiscard]] std::optional<StepIndex> agree_on_start(comm::Communicator* ranks, RunClaim& claim);

/// Prepares the state of every rank, in an order in which a kill leaves nothing that the next start
/// could not tell from lost state, and makes them ranks of one job.
void prepare_state(comm::Communicator* ranks, RunClaim& claim,
                   const std::vector<std::filesystem::path>& nvme);
/// Records what every rank is. Rank 0 does first: what others name must be there.
void record(comm::Communicator* ranks, RunClaim& claim, RunConfig& config);

/// Throws `Error{busy}` on the ranks that have taken another step than rank 0 from the run in
/// `from`, which another process trains.
void check_same_step(comm::Communicator* ranks, const std::filesystem::path& from, StepIndex step);

/// Returns the least of each budget.
[[nodiscard]] plan::Budgets least(comm::Communicator* ranks, const plan::Budgets& mine);
/// Measures the links between ranks, and returns the slowest of each value. `tensor` is this rank's
/// end of its tensor group; null: there is none.
[[nodiscard]] plan::MachineProfile slowest(comm::Communicator* ranks, const plan::Ranks& part,
                                           comm::Communicator* tensor, plan::MachineProfile mine);

}  // namespace spillway::engine
