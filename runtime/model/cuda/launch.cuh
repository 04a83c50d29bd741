// kernels.hpp's `launch`, for a source that has included the bodies of what it instantiates.
#pragma once

#include "runtime/model/cuda/device_runner.cuh"
#include "runtime/model/cuda/kernels/kernels.hpp"

namespace spillway::model::cuda {

template <class Op>
void launch(void* stream, DType compute, const Op& op) {
  DeviceRunner runner(stream);
  bodies::run(runner, compute, op);
}

}  // namespace spillway::model::cuda
