// LaunchEnvironment: what a launcher has told this process about its rank. Pure; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/units.hpp"

namespace spillway::comm {

/// File in which rank 0 keeps a secret until all ranks have met, in a directory that they share.
inline constexpr std::string_view kJobSecretFile = "job.secret";

struct LaunchEnvironment {
  /// "torchrun" (or who sets its variables), "mpirun" (Open MPI's), "mpiexec" (of others) or "srun"
  std::string launcher;
  Rank rank{};
  std::uint32_t ranks = 1;
  std::string variables{};       ///< that say so, with their values: "RANK=0 and WORLD_SIZE=2"
  std::uint32_t local_rank = 0;  ///< among those of this machine
  std::optional<std::uint32_t> local_ranks{};  ///< absent: the launcher does not say
  /// By which the launcher lets ranks meet: "mpi", or "tcp", for which the rest is there.
  std::string backend{};
  std::string host{};      ///< the machine of rank 0; empty: the launcher does not say
  std::uint16_t port = 0;  ///< where rank 0 takes connections
  std::string job{};       ///< what tells this job from others
  /// What the ranks of this job know and nobody else, from SPILLWAY_JOB_SECRET; empty: that is not
  /// set.
  std::string secret{};
  /// A directory that all ranks have, for kJobSecretFile where no secret was given; empty: there is
  /// none.
  std::filesystem::path meeting_directory{};
  /// A rank may be late for so many seconds, from SPILLWAY_TIMEOUT; absent: that is not set.
  std::optional<std::uint32_t> timeout{};
  /// Nobody else reaches the ranks: they need no secret.
  bool trusts_network = false;
};

/// Returns a variable's value, or null if there is none. Programs pass std::getenv.
using EnvironmentLookup = std::function<const char*(const char* name)>;

/// Returns nothing for a process that no launcher has started. Where several have (mpirun in an
/// allocation of SLURM), the innermost counts. Throws `Error{invalid_argument}`, which names
/// variable and value, for what is missing or makes no sense.
[[nodiscard]] std::optional<LaunchEnvironment> read_launch_environment(
    const EnvironmentLookup& lookup);

/// Returns where the ranks of this process's job meet by TCP, for a process that cannot be one of
/// them because read_launch_environment throws. Its rank need not be below the number of ranks.
/// Returns nothing where the meeting cannot be read either.
[[nodiscard]] std::optional<LaunchEnvironment> read_meeting(const EnvironmentLookup& lookup);

}  // namespace spillway::comm
