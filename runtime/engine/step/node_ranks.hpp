// The ranks of a node: those in a row that share out a second copy of parameters.
#pragma once

#include <memory>

#include "comm/communicator.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Returns this rank's end of a group of them; null if there is no such copy. Every rank calls it.
[[nodiscard]] std::unique_ptr<comm::Communicator> node_of(comm::Communicator* ranks,
                                                          const plan::Ranks& part);

}  // namespace spillway::engine
