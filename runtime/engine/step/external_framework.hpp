// ExternalFramework: another framework, which runs forward and backward itself. An op of the
// external lane says when a pass may begin, and is complete when the framework says that the pass
// is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/ticket.hpp"

namespace spillway::engine {

/// A pass of one block, which may begin.
struct ExternalPass {
  std::uint32_t block = 0;
  std::byte* parameters = nullptr;  ///< of the block, on the host or on the device
  std::byte* frozen = nullptr;      ///< what nothing updates of a streamed block, on the device
};

/// Called on the control thread once the op may start. Does not block.
class ExternalFramework {
 public:
  virtual ~ExternalFramework() = default;
  /// Lets the pass begin: the parameters of the block have all updates. The ticket is ready once
  /// they have been read.
  [[nodiscard]] virtual Ticket forward(const ExternalPass& pass) = 0;
  /// Lets the pass begin: the memory of the block's gradient may be written. The ticket is ready
  /// once all of it has been, and the parameters have been read.
  [[nodiscard]] virtual Ticket backward(const ExternalPass& pass) = 0;
};

}  // namespace spillway::engine
