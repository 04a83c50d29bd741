// The ranks of a job, as a launcher has started them.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "comm/communicator.hpp"
#include "comm/launch_environment.hpp"
#include "tools/cli/command_line.hpp"

namespace spillway::cli {

/// Returns what the launcher has told this process, if there is one.
[[nodiscard]] std::optional<comm::LaunchEnvironment> launch_environment();
/// The same, with where the ranks of a run have their secret. Ranks that wait for this process hear
/// why it throws.
[[nodiscard]] std::optional<comm::LaunchEnvironment> launch_environment(
    const std::filesystem::path& run, bool trusts_network);

/// Adds --trust-network.
void add_trust_network(Command& command, bool& trusts);

/// Returns what a communicator of ranks takes of the launcher and of `spillway.timeout`, if given.
[[nodiscard]] comm::CommunicatorOptions communicator_options(
    const comm::LaunchEnvironment& launch, std::optional<std::uint32_t> timeout_seconds = {});

/// Joins the other ranks that `launch` tells of. Throws an Error that names the variables that tell
/// of them where they cannot meet.
[[nodiscard]] std::unique_ptr<comm::Communicator> join_ranks(
    const comm::LaunchEnvironment& launch, const comm::CommunicatorOptions& options = {});

}  // namespace spillway::cli
