// Norms and column sums on the device.
#include "runtime/model/cuda/bodies/norm.hpp"
#include "runtime/model/cuda/device_runner.cuh"
#include "runtime/model/cuda/kernels.hpp"

namespace spillway::model::cuda {

Bytes reduction_workspace(std::uint64_t rows, std::uint64_t columns) {
  return Bytes{bodies::reduction_bytes(rows, columns)};
}

void norm_forward(void* stream, DType compute, const NormShape& shape,
                  const NormForwardArguments& arguments) {
  DeviceRunner runner(stream);
  bodies::norm_forward(runner, compute, shape, arguments);
}

void norm_backward(void* stream, DType compute, const NormShape& shape,
                   const NormBackwardArguments& arguments) {
  DeviceRunner runner(stream);
  bodies::norm_backward(runner, compute, shape, arguments);
}

void bias_gradient(void* stream, DType compute, std::uint64_t rows, ConstTensor out_gradient,
                   Gradient gradient, Tensor workspace) {
  DeviceRunner runner(stream);
  bodies::bias_gradient(runner, compute, rows, out_gradient, gradient, workspace);
}

}  // namespace spillway::model::cuda
