// The backend `mpi`, as the program sees it: a plugin that is looked for when it is asked for.
#pragma once

#include <chrono>
#include <memory>

#include "comm/detail/transport.hpp"

namespace spillway::comm::detail {

/// Makes a transport among the processes that mpirun or srun has started. Throws
/// `Error{not_supported}` where the plugin or MPI is missing. Called by the thread that makes
/// progress, which owns all calls of MPI: where nobody else has initialized MPI, it does that, and
/// then a process has one such transport in its life.
///
/// MPI's own start waits for every process of the launcher, has no limit and cannot be ended. It is
/// logged after 10 s, and after `limit` this process says so and exits.
[[nodiscard]] std::unique_ptr<Transport> make_mpi_transport(std::chrono::milliseconds limit);

}  // namespace spillway::comm::detail
