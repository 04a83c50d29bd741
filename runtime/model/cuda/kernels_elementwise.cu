// Elementwise operations on the device.
#include "runtime/model/cuda/bodies/elementwise.hpp"
#include "runtime/model/cuda/device_runner.cuh"
#include "runtime/model/cuda/kernels.hpp"

namespace spillway::model::cuda {

void fill_zero(void* stream, offload::DeviceSpan<float> values) {
  if (!values.empty()) DeviceRunner(stream).zero(values.address(), values.size());
}

void narrow(void* stream, DType compute, offload::DeviceSpan<const float> input, Tensor out) {
  DeviceRunner runner(stream);
  bodies::narrow(runner, compute, input, out);
}

}  // namespace spillway::model::cuda
