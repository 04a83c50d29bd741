// What the ranks of a job tell each other of their machines and plans, so that all of them plan
// alike. Each function is called by every rank. Control thread only.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/config/train_options.hpp"
#include "runtime/engine/ranks/rank_groups.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// The name by which ranks know that they share a machine: the host's, and behind its end the
/// number of this start of the system, since machines may have one name.
using MachineName = std::array<char, 256>;
[[nodiscard]] MachineName machine_name();

/// Returns the largest value of all ranks.
[[nodiscard]] std::uint64_t largest_of(RankGroups& ranks, std::uint64_t mine);

/// Returns the `mine` of all ranks where they have the same; else 0.
[[nodiscard]] std::uint32_t common_to(RankGroups& ranks, std::uint32_t mine);

/// Returns the seconds of a step of all stages: `stretch` (plan::Stage) times the `seconds` of work
/// of the stage that speaks for the job (plan::speaks_for_job).
[[nodiscard]] double seconds_of_job(RankGroups& ranks, double stretch, double seconds);

/// Returns the GPU of this rank, as CUDA numbers those that it shows, and makes it current on this
/// thread: the ranks of a machine have one each, in their order. 0 for a rank that trains on the
/// host. Throws `Error{invalid_argument}` that names two ranks where they have the same one.
[[nodiscard]] int gpu_of_rank(RankGroups& ranks, config::DeviceKind device);

/// Returns the least of each budget over all ranks.
[[nodiscard]] plan::Budgets least(RankGroups& ranks, const plan::Budgets& mine);
/// Measures the links between ranks, and returns this rank's profile with their rates.
[[nodiscard]] plan::MachineProfile with_links(RankGroups& ranks, plan::MachineProfile mine);
/// Returns the slowest of each rate over all ranks.
[[nodiscard]] plan::MachineProfile slowest(RankGroups& ranks, const plan::MachineProfile& mine);

}  // namespace spillway::engine
