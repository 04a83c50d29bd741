// Where a rank of the backend `tcp` takes connections: at the address by which the others reach it,
// and nowhere else.
#pragma once

#include "comm/launch_environment.hpp"
#include "comm/tcp/socket.hpp"

namespace spillway::comm::detail {

/// Whether all ranks are on the machine of rank 0, as far as the launcher or its host's name says.
[[nodiscard]] bool is_on_one_machine(const LaunchEnvironment& launch);

/// Listens, as rank 0, at the launcher's port of its host.
[[nodiscard]] FileDescriptor listen_as_first(const LaunchEnvironment& launch);
/// Listens, as another rank, at a free port of the address by which it has reached rank 0 over
/// `first`.
[[nodiscard]] FileDescriptor listen_beside(const LaunchEnvironment& launch,
                                           const FileDescriptor& first);

/// Raises this process's limit of open files to what the system allows. Throws
/// `Error{not_supported}` if it is too low for the connections of `ranks`, naming how many it
/// suffices for.
void raise_open_files(std::uint32_t ranks);

}  // namespace spillway::comm::detail
