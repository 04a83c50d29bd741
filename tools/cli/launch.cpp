#include "tools/cli/launch.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "comm/launch_environment.hpp"
#include "runtime/base/error.hpp"

namespace spillway::cli {

std::unique_ptr<comm::Communicator> join_ranks() {
  const auto launch =
      comm::read_launch_environment([](const char* name) { return std::getenv(name); });
  if (!launch || launch->ranks == 1) return nullptr;
  const std::string job = fmt::format("{} has started {} ranks", launch->launcher, launch->ranks);
  check(launch->launcher != "torchrun", ErrorCode::not_supported,
        fmt::format("{}, which can meet by MPI alone in this version; run \"mpirun -n {} spillway "
                    "train ...\" or srun in its place, or, for one rank, spillway without torchrun",
                    job, launch->ranks));
  auto ranks = [&] {
    try {
      return comm::make_communicator("mpi");
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}, and they cannot meet: {}", job, error.what()));
    }
  }();
  check(ranks->ranks() == launch->ranks && ranks->rank() == launch->rank, ErrorCode::not_supported,
        fmt::format("{} and MPI knows {}: it is another MPI's launcher, or srun lacks --mpi; use "
                    "the mpirun of the MPI that libspillway_mpi.so was built with",
                    job, ranks->ranks()));
  return ranks;
}

}  // namespace spillway::cli
