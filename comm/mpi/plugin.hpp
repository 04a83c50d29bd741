// What libspillway_mpi.so offers to the program, which loads it when `mpi` is asked for: the
// program and its users do without MPI.
#pragma once

#include "comm/detail/transport.hpp"

namespace spillway::comm::detail {

inline constexpr const char* kMpiPlugin = "libspillway_mpi.so";
/// Returns the version of Spillway with which the plugin was built. The two share C++ types, so
/// that no other will do.
inline constexpr const char* kMpiVersionFunction = "spillway_mpi_version";
using MpiVersion = const char*();
/// Returns a transport that the caller deletes, or throws.
inline constexpr const char* kMpiMakeFunction = "spillway_mpi_make_transport";
using MpiMake = Transport*();

}  // namespace spillway::comm::detail
