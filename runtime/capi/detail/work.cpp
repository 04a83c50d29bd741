#include "runtime/capi/detail/work.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"
#include "runtime/capi/spillway.h"

namespace spillway::capi {

using Kind = offload::ExternalWork::Kind;

offload::ExternalWork read_work(const GivenWork& given, const engine::EmbeddedTrainer& trainer,
                                std::string_view what) {
  check(
      given.ready >= SPILLWAY_READY_NOW && given.ready <= SPILLWAY_READY_EVENT,
      ErrorCode::invalid_argument,
      fmt::format("ready of {} is {}: there are SPILLWAY_READY_NOW (0), SPILLWAY_READY_STREAM and "
                  "SPILLWAY_READY_EVENT (2)",
                  what, given.ready));
  if (given.ready == SPILLWAY_READY_NOW) {
    check(given.handle == nullptr, ErrorCode::invalid_argument,
          fmt::format("{} comes with SPILLWAY_READY_NOW and a handle ({}): the handle must be null",
                      what, given.handle));
    return {};
  }
  const bool stream = given.ready == SPILLWAY_READY_STREAM;
  check(trainer.options().device == config::DeviceKind::cuda, ErrorCode::not_supported,
        fmt::format("{} is to wait for {}, and the trainer's device is the host: start it with "
                    "device SPILLWAY_CUDA, or synchronize and pass SPILLWAY_READY_NOW",
                    what, stream ? "a stream" : "an event"));
  check(stream || given.handle != nullptr, ErrorCode::invalid_argument,
        fmt::format("{} is to wait for an event, which is a null pointer", what));
  return {stream ? Kind::stream : Kind::event, given.handle};
}

}  // namespace spillway::capi
