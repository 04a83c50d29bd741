// Call: one operation as the control thread asked for it, with arguments that have been checked.
// A value; the buffers belong to the caller until the ticket is over.
#pragma once

#include <cstddef>
#include <span>

#include "comm/communicator.hpp"

namespace spillway::comm::detail {

struct Call {
  Operation operation = Operation::barrier;
  std::span<const std::byte> source{};
  std::span<std::byte> target{};
  SumTypes types{};  ///< of operations that sum
  Rank root{};       ///< also whom a send or an exchange sends to
  Rank from{};       ///< whom a receive or an exchange receives from
};

}  // namespace spillway::comm::detail
