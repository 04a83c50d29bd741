// Work of the program on a GPU that a call follows. Any thread may call anything here.
#pragma once

#include <cstdint>
#include <string_view>

#include "offload/device_backend.hpp"
#include "runtime/engine/embedded_trainer.hpp"

namespace spillway::capi {

/// Work that a call names: SPILLWAY_READY_NOW and so on, and a stream or an event.
struct GivenWork {
  std::int32_t ready = 0;
  void* handle = nullptr;
};

/// Returns the work. Throws `Error{not_supported}` for a stream or an event where the trainer's
/// device is the host. `what`: waits for it, for messages.
[[nodiscard]] offload::ExternalWork read_work(const GivenWork& given,
                                              const engine::EmbeddedTrainer& trainer,
                                              std::string_view what);

}  // namespace spillway::capi
