// Activations and rotary embedding on the device.
#include "runtime/model/cuda/bodies/activation.hpp"
#include "runtime/model/cuda/bodies/rope.hpp"
#include "runtime/model/cuda/device_runner.cuh"
#include "runtime/model/cuda/kernels.hpp"

namespace spillway::model::cuda {

void rope(void* stream, DType compute, const RopeArguments& arguments) {
  DeviceRunner runner(stream);
  bodies::rope(runner, compute, arguments);
}

void activation_forward(void* stream, DType compute, const ActivationShape& shape,
                        ConstTensor input, Tensor out) {
  DeviceRunner runner(stream);
  bodies::activation_forward(runner, compute, shape, input, out);
}

void activation_backward(void* stream, DType compute, const ActivationShape& shape,
                         const ActivationBackwardArguments& arguments) {
  DeviceRunner runner(stream);
  bodies::activation_backward(runner, compute, shape, arguments);
}

}  // namespace spillway::model::cuda
