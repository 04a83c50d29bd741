// The CUDA runtime's status as our error.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "runtime/base/error.hpp"

namespace spillway::model::cuda {

/// Throws `Error{device_error}` unless `status` is success. `what` was tried: "launching
/// attention". Spelled without fmt, whose constant evaluation nvcc does not follow.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) [[likely]] {
    return;
  }
  throw Error(ErrorCode::device_error,
              std::string(what) + " failed: " + cudaGetErrorString(status) + " (" +
                  cudaGetErrorName(status) +
                  "); the cause may be an earlier operation on the device",
              static_cast<int>(status));
}

}  // namespace spillway::model::cuda
