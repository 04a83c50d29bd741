#include "tools/cli/launch.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "runtime/base/error.hpp"

namespace spillway::cli {

namespace {

const char* environment(const char* name) { return std::getenv(name); }

std::unique_ptr<comm::Communicator> meet(const comm::LaunchEnvironment& launch,
                                         const comm::CommunicatorOptions& options) {
  if (launch.backend == "tcp") return comm::make_tcp_communicator(launch, options);
  try {
    return comm::make_communicator("mpi", options);
  } catch (const Error& error) {
    const bool without_mpi = error.code() == ErrorCode::not_supported && !launch.host.empty();
    if (!without_mpi) throw;
    return comm::make_tcp_communicator(launch, options);
  }
}

}  // namespace

std::optional<comm::LaunchEnvironment> launch_environment() {
  return comm::read_launch_environment(environment);
}

std::optional<comm::LaunchEnvironment> launch_environment(const std::filesystem::path& run,
                                                          bool trusts_network) {
  const auto in_run = [&](std::optional<comm::LaunchEnvironment> launch) {
    if (launch.has_value()) {
      launch->meeting_directory = run;
      launch->trusts_network = trusts_network;
    }
    return launch;
  };
  try {
    return in_run(launch_environment());
  } catch (const Error& error) {
    if (const auto launch = in_run(comm::read_meeting(environment))) {
      comm::report_failed_launch(*launch, error);
    }
    throw;
  }
}

void add_trust_network(Command& command, bool& trusts) {
  command.add_flag("--trust-network", trusts,
                   "Ranks of several machines meet without a secret: nobody else reaches them");
}

comm::CommunicatorOptions communicator_options(const comm::LaunchEnvironment& launch,
                                               std::optional<std::uint32_t> timeout_seconds) {
  comm::CommunicatorOptions options;
  const auto seconds = timeout_seconds.has_value() ? timeout_seconds : launch.timeout;
  if (seconds.has_value()) options.timeout_ms = *seconds * 1000;
  return options;
}

std::unique_ptr<comm::Communicator> join_ranks(const comm::LaunchEnvironment& launch,
                                               const comm::CommunicatorOptions& options) {
  const std::string job =
      fmt::format("{} say that there are {} ranks", launch.variables, launch.ranks);
  auto ranks = [&] {
    try {
      return meet(launch, options);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}, and rank {} cannot meet the others: {}", job,
                                            launch.rank.value(), error.what()));
    }
  }();
  check(ranks->ranks() == launch.ranks && ranks->rank() == launch.rank, ErrorCode::not_supported,
        fmt::format("{} and MPI knows {}: it is another MPI's launcher; use the mpirun of the MPI "
                    "that libspillway_mpi.so was built with, or srun with --mpi=pmix for Open MPI, "
                    "--mpi=pmi2 for MPICH and --mpi=none without MPI",
                    job, ranks->ranks()));
  return ranks;
}

}  // namespace spillway::cli
