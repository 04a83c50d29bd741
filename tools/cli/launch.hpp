// The ranks of a job, as a launcher has started them.
#pragma once

#include <memory>
#include <optional>

#include "comm/communicator.hpp"
#include "comm/launch_environment.hpp"

namespace spillway::cli {

/// Returns what the launcher has told this process, if there is one.
[[nodiscard]] std::optional<comm::LaunchEnvironment> launch_environment();

/// Joins the other ranks that the launcher of this process has started; null where this is the only
/// one. Throws an Error that names the launcher where the ranks cannot meet.
[[nodiscard]] std::unique_ptr<comm::Communicator> join_ranks();

}  // namespace spillway::cli
