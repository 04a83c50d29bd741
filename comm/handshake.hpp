// The handshake of a group: before anything else, its ranks make sure that they are about to run
// the same thing. Called by the control thread of every rank.
#pragma once

#include <cstdint>
#include <string_view>

#include "comm/communicator.hpp"

namespace spillway::comm {

/// What has to be the same on every rank.
struct Identity {
  std::string_view version;   ///< of the program; its first 31 bytes count
  std::uint32_t ranks = 0;    ///< as the launcher told this rank
  std::string_view settings;  ///< one "name: value" a line; at most 1 MiB
};

/// Compares `mine` with every rank's; blocks until all have called it. Throws
/// `Error{invalid_argument}`, on every rank the same, which names the first rank that differs from
/// rank 0 and both values.
void handshake(Communicator& communicator, const Identity& mine);

}  // namespace spillway::comm
