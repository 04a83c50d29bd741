// ExternalPasses: forward and backward that another framework runs. An op of the external lane says
// when a pass may begin, and is complete when the framework says that the pass is.
#pragma once

#include <cstdint>

#include "runtime/base/ticket.hpp"

namespace spillway::engine {

/// Called on the control thread once the op may start. Does not block.
class ExternalPasses {
 public:
  virtual ~ExternalPasses() = default;
  /// The parameters of the block have all updates.
  [[nodiscard]] virtual Ticket forward(std::uint32_t block) = 0;
  /// The memory of the block's gradient may be written; the ticket is ready once all of it is.
  [[nodiscard]] virtual Ticket backward(std::uint32_t block) = 0;
};

}  // namespace spillway::engine
