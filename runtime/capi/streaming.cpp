// Units of parameters that pass through the device, and the device's memory as a whole.
#include <fmt/format.h>

#include <array>

#include "runtime/base/error.hpp"
#include "runtime/base/mutex.hpp"
#include "runtime/capi/detail/session.hpp"
#include "runtime/capi/detail/status.hpp"
#include "runtime/capi/detail/structures.hpp"
#include "runtime/capi/detail/work.hpp"
#include "runtime/capi/spillway.h"

namespace spillway::capi {
namespace {

/// Calls of passes go on beside gradients, one at a time.
class SPILLWAY_SCOPED_CAPABILITY PassCall {
 public:
  /// Throws `Error{busy}` if there is another one.
  explicit PassCall(Session& session) SPILLWAY_ACQUIRE(session.one_pass) : session_(session) {
    check(session_.one_pass.try_lock(), ErrorCode::busy,
          "another thread enters or leaves a unit of this trainer: one thread at a time does");
  }
  ~PassCall() SPILLWAY_RELEASE() { session_.one_pass.unlock(); }
  PassCall(const PassCall&) = delete;
  PassCall& operator=(const PassCall&) = delete;

 private:
  Session& session_;
};

}  // namespace
}  // namespace spillway::capi

using spillway::check;
using spillway::ErrorCode;
namespace capi = spillway::capi;

spillway_status spillway_set_unit(spillway_trainer* trainer, uint32_t parameter, uint32_t unit) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    use->check_not_started();
    check(parameter < use->parameters.size(), ErrorCode::invalid_argument,
          fmt::format("there is no parameter {}: {} were added, and the first is 0", parameter,
                      use->parameters.size()));
    use->parameters[parameter].unit = unit;
  });
}

spillway_status spillway_enter(spillway_trainer* trainer, uint32_t unit, int32_t pass) {
  return capi::guarded([&] {
    const capi::SharedUse use(trainer);
    spillway::engine::EmbeddedTrainer& engine = use->trainer();
    check(
        pass == SPILLWAY_FORWARD || pass == SPILLWAY_BACKWARD, ErrorCode::invalid_argument,
        fmt::format("pass is {}: there are SPILLWAY_FORWARD (0) and SPILLWAY_BACKWARD (1)", pass));
    const capi::PassCall one(*use);
    engine.enter(unit, pass == SPILLWAY_FORWARD ? spillway::engine::EmbeddedPass::forward
                                                : spillway::engine::EmbeddedPass::backward);
  });
}

spillway_status spillway_device_values(spillway_trainer* trainer, uint32_t parameter,
                                       spillway_tensor* values) {
  return capi::guarded([&] {
    const capi::SharedUse use(trainer);
    const capi::Registered& registered = use->parameter(parameter);
    const spillway::engine::EmbeddedOptions& options = use->trainer().options();
    const capi::PassCall one(*use);
    spillway_tensor result = SPILLWAY_TENSOR_INIT;
    result.dtype = static_cast<std::int32_t>(use->dtype);
    if (options.device == spillway::config::DeviceKind::cuda) {
      result.device = SPILLWAY_CUDA;
      result.device_index = options.device_index;
    }
    result.data = use->trainer().device_values(parameter).data();
    result.shape = registered.shape.data();
    result.dimensions = static_cast<std::int32_t>(registered.shape.size());
    capi::write_structure(values, result, "the spillway_tensor");
  });
}

spillway_status spillway_leave(spillway_trainer* trainer, uint32_t unit, int32_t ready,
                               void* handle) {
  return capi::guarded([&] {
    const capi::SharedUse use(trainer);
    const auto work =
        capi::read_work({ready, handle}, use->trainer(), fmt::format("unit {}", unit));
    const capi::PassCall one(*use);
    use->trainer().leave(unit, work);
  });
}

spillway_status spillway_release_device(spillway_trainer* trainer, int32_t ready, void* handle) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    use->trainer().release_device(
        capi::read_work({ready, handle}, use->trainer(), "the device's release"));
    use->find_values();
  });
}

spillway_status spillway_resume_device(spillway_trainer* trainer) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    use->trainer().resume_device();
    use->find_values();
  });
}
