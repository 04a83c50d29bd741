// Elementwise operations on the device.
#include "runtime/model/cuda/bodies/elementwise.hpp"
#include "runtime/model/cuda/device_runner.cuh"
#include "runtime/model/cuda/kernels.hpp"

namespace spillway::model::cuda {

void fill_zero(void* stream, offload::DeviceSpan<float> values) {
  if (!values.empty()) DeviceRunner(stream).zero(values.address(), values.size());
}

void add(void* stream, DType compute, ConstTensor a, ConstTensor b, Tensor out) {
  DeviceRunner runner(stream);
  bodies::add(runner, compute, a, b, out);
}

void add_bias(void* stream, DType compute, std::uint64_t rows, ConstTensor input, ConstTensor bias,
              Tensor out) {
  DeviceRunner runner(stream);
  bodies::add_bias(runner, compute, rows, input, bias, out);
}

void narrow(void* stream, DType compute, offload::DeviceSpan<const float> input, Tensor out) {
  DeviceRunner runner(stream);
  bodies::narrow(runner, compute, input, out);
}

void widen(void* stream, DType compute, ConstTensor input, offload::DeviceSpan<float> out) {
  DeviceRunner runner(stream);
  bodies::widen(runner, compute, input, out);
}

void accumulate(void* stream, DType compute, ConstTensor input, Gradient out) {
  DeviceRunner runner(stream);
  bodies::accumulate(runner, compute, input, out);
}

}  // namespace spillway::model::cuda
