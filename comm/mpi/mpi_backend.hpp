// The backend `mpi`, as the program sees it: a plugin that is looked for when it is asked for.
#pragma once

#include <memory>

#include "comm/detail/transport.hpp"

namespace spillway::comm::detail {

/// Makes a transport among the processes that mpirun or srun has started. Throws
/// `Error{not_supported}` where the plugin or MPI is missing. Called by the thread that makes
/// progress, which owns all calls of MPI: where nobody else has initialized MPI, it does that, and
/// then a process has one such transport in its life.
[[nodiscard]] std::unique_ptr<Transport> make_mpi_transport();

}  // namespace spillway::comm::detail
