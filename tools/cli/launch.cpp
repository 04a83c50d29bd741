#include "tools/cli/launch.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "runtime/base/error.hpp"

namespace spillway::cli {

namespace {

std::unique_ptr<comm::Communicator> meet(const comm::LaunchEnvironment& launch) {
  if (launch.backend == "tcp") return comm::make_tcp_communicator(launch);
  try {
    return comm::make_communicator("mpi");
  } catch (const Error& error) {
    const bool without_mpi = error.code() == ErrorCode::not_supported && !launch.host.empty();
    if (!without_mpi) throw;
    return comm::make_tcp_communicator(launch);
  }
}

}  // namespace

std::optional<comm::LaunchEnvironment> launch_environment() {
  return comm::read_launch_environment([](const char* name) { return std::getenv(name); });
}

std::unique_ptr<comm::Communicator> join_ranks() {
  const std::optional<comm::LaunchEnvironment> launch = launch_environment();
  if (!launch || launch->ranks == 1) return nullptr;
  const std::string job = fmt::format("{} has started {} ranks", launch->launcher, launch->ranks);
  auto ranks = [&] {
    try {
      return meet(*launch);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}, and they cannot meet: {}", job, error.what()));
    }
  }();
  check(ranks->ranks() == launch->ranks && ranks->rank() == launch->rank, ErrorCode::not_supported,
        fmt::format("{} and MPI knows {}: it is another MPI's launcher; use the mpirun of the MPI "
                    "that libspillway_mpi.so was built with, or srun with --mpi=pmix for Open MPI, "
                    "--mpi=pmi2 for MPICH and --mpi=none without MPI",
                    job, ranks->ranks()));
  return ranks;
}

}  // namespace spillway::cli
