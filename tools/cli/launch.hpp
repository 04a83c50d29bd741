// The ranks of a job, as a launcher has started them.
#pragma once

#include <memory>

#include "comm/communicator.hpp"

namespace spillway::cli {

/// Joins the other ranks that the launcher of this process has started; null where this is the only
/// one. Throws `Error{not_supported}` that names the launcher where the ranks have no way to meet.
[[nodiscard]] std::unique_ptr<comm::Communicator> join_ranks();

}  // namespace spillway::cli
