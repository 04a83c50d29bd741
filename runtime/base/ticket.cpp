#include "runtime/base/ticket.hpp"

#include <exception>

#include "runtime/base/log.hpp"

namespace spillway {

void Ticket::abandon() noexcept {
  if (source_ == nullptr) return;
  try {
    wait();
  } catch (const std::exception& error) {
    log_error("an abandoned operation failed: {}", error.what());
  }
}

}  // namespace spillway
