// Steps: values, gradients, updates, and what is waited for.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/base/mutex.hpp"
#include "runtime/capi/detail/session.hpp"
#include "runtime/capi/detail/status.hpp"
#include "runtime/capi/detail/structures.hpp"
#include "runtime/capi/detail/work.hpp"
#include "runtime/capi/spillway.h"

namespace spillway::capi {
namespace {

void check_like(const Tensor& gradient, const Registered& parameter, DType dtype,
                std::string_view what) {
  check(gradient.dtype == dtype, ErrorCode::invalid_argument,
        fmt::format("{} is {} and the parameter {}: convert it", what, name_of(gradient.dtype),
                    name_of(dtype)));
  check(std::ranges::equal(gradient.shape, parameter.shape), ErrorCode::invalid_argument,
        fmt::format("{} has the shape {} and the parameter {}: pass the gradient of this parameter",
                    what, shape_text(gradient.shape), shape_text(parameter.shape)));
}

void check_gpu(const Tensor& gradient, const engine::EmbeddedOptions& options,
               std::string_view what) {
  if (options.device == config::DeviceKind::host) check_on_host(gradient, what);
  check(gradient.device_index == options.device_index, ErrorCode::invalid_argument,
        fmt::format("{} lies on GPU {} and the trainer's is GPU {}: copy it there", what,
                    gradient.device_index, options.device_index));
}

}  // namespace
}  // namespace spillway::capi

using spillway::check;
using spillway::ErrorCode;
namespace capi = spillway::capi;

spillway_status spillway_values(spillway_trainer* trainer, uint32_t parameter,
                                spillway_tensor* values) {
  return capi::guarded([&] {
    const capi::SharedUse use(trainer);
    const capi::Registered& registered = use->parameter(parameter);
    spillway_tensor result = SPILLWAY_TENSOR_INIT;
    result.dtype = static_cast<std::int32_t>(use->dtype);
    result.data = registered.values;
    if (registered.on_gpu) {
      result.device = SPILLWAY_CUDA;
      result.device_index = use->trainer().options().device_index;
    }
    result.shape = registered.shape.data();
    result.dimensions = static_cast<std::int32_t>(registered.shape.size());
    capi::write_structure(values, result, "the spillway_tensor");
  });
}

spillway_status spillway_values_changed(spillway_trainer* trainer, uint32_t parameter) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    static_cast<void>(use->parameter(parameter));
    use->trainer().take_values(parameter);
  });
}

spillway_status spillway_values_written(spillway_trainer* trainer, uint32_t parameter,
                                        int32_t ready, void* handle) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    const std::string what = fmt::format("\"{}\"", use->parameter(parameter).name);
    use->trainer().take_values(parameter, capi::read_work({ready, handle}, use->trainer(), what));
  });
}

spillway_status spillway_gradient_ready(spillway_trainer* trainer, uint32_t parameter,
                                        const spillway_tensor* gradient, int32_t ready,
                                        void* handle) {
  return capi::guarded([&] {
    const capi::SharedUse use(trainer);
    capi::Registered& registered = use->parameter(parameter);
    const std::string what = fmt::format("the gradient of \"{}\"", registered.name);
    const capi::Tensor tensor = capi::read_tensor(gradient, what);
    spillway::engine::EmbeddedTrainer& engine = use->trainer();
    const bool on_gpu = tensor.device == SPILLWAY_CUDA;
    if (on_gpu) capi::check_gpu(tensor, engine.options(), what);
    const auto work = capi::read_work({ready, handle}, engine, what);
    check(on_gpu || ready == SPILLWAY_READY_NOW, ErrorCode::invalid_argument,
          fmt::format("{} is in host memory and is to wait for work of a GPU: synchronize with it, "
                      "then pass SPILLWAY_READY_NOW",
                      what));
    capi::check_like(tensor, registered, use->dtype, what);
    const spillway::Lock one(registered.one_call);
    if (!on_gpu) return engine.add_gradient(parameter, tensor.bytes);
    engine.add_device_gradient(
        parameter, {.values = {tensor.bytes.data(), tensor.bytes.size()}, .ready = work});
  });
}

spillway_status spillway_gradient_read(spillway_trainer* trainer, uint32_t parameter,
                                       int32_t* read) {
  return capi::guarded([&] {
    const capi::SharedUse use(trainer);
    static_cast<void>(use->parameter(parameter));
    check(read != nullptr, ErrorCode::invalid_argument,
          "the address for the answer is a null pointer: pass that of an int32_t");
    *read = use->trainer().reads_gradient(parameter) ? 0 : 1;
  });
}

spillway_status spillway_discard_gradients(spillway_trainer* trainer) {
  return capi::guarded([&] { capi::SoleUse(trainer)->trainer().discard_gradients(); });
}

spillway_status spillway_grad_norm(spillway_trainer* trainer, double divisor, double* norm) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    check(norm != nullptr, ErrorCode::invalid_argument,
          "the address for the norm is a null pointer: pass that of a double");
    *norm = use->trainer().grad_norm(divisor);
  });
}

spillway_status spillway_step(spillway_trainer* trainer, const spillway_step_options* options,
                              spillway_step_result* result) {
  return capi::guarded([&] {
    const capi::SoleUse use(trainer);
    const spillway_step_options defaults = SPILLWAY_STEP_OPTIONS_INIT;
    const auto given =
        capi::read_structure(options == nullptr ? &defaults : options, "the spillway_step_options");
    if (result != nullptr) capi::check_size(result, "the spillway_step_result");
    const spillway::engine::EmbeddedResult done = use->trainer().step(
        {.gradient_divisor = given.gradient_divisor,
         .max_norm = given.max_norm,
         .readers = capi::read_work({given.ready, given.handle}, use->trainer(), "the step")});
    if (result == nullptr) return;
    spillway_step_result values = SPILLWAY_STEP_RESULT_INIT;
    values.step = done.step;
    values.grad_norm = done.grad_norm;
    values.skipped = done.skipped ? 1 : 0;
    capi::write_structure(result, values, "the spillway_step_result");
  });
}

spillway_status spillway_wait(spillway_trainer* trainer, uint32_t parameter) {
  return capi::guarded([&] {
    const capi::SharedUse use(trainer);
    const spillway::Lock one(use->parameter(parameter).one_call);
    use->trainer().wait(parameter);
  });
}

spillway_status spillway_synchronize(spillway_trainer* trainer) {
  return capi::guarded([&] { capi::SoleUse(trainer)->trainer().wait(); });
}
