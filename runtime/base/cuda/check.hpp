// The CUDA runtime's status as our error, for the folders that call it. Header only: the rest of
// runtime/base knows nothing of CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "runtime/base/error.hpp"

namespace spillway {

/// Throws `Error{device_error}` unless `status` is success. `what` was tried: "launching
/// attention". Spelled without fmt, whose constant evaluation nvcc does not follow.
inline void check_cuda(cudaError_t status, std::string_view what,
                       SourceLocation where = SourceLocation::current()) {
  if (status == cudaSuccess) [[likely]] {
    return;
  }
  throw Error(ErrorCode::device_error,
              std::string(what) + " failed: " + cudaGetErrorName(status) + ": " +
                  cudaGetErrorString(status) +
                  "; an earlier operation on the device may be the cause, which compute-sanitizer "
                  "names",
              static_cast<int>(status), where);
}

/// Returns what CUDA says of the thread's last call or of the stream's work, behind "; "; nothing
/// where all is well. For a library of NVIDIA's that fails and does not say why: a kernel that
/// broke the device before makes every later call fail. `stream`: null where the call has none.
inline std::string cause_in_cuda(cudaStream_t stream) {
  cudaError_t status = stream != nullptr ? cudaStreamQuery(stream) : cudaSuccess;
  if (status == cudaErrorNotReady) status = cudaSuccess;
  if (status == cudaSuccess) status = cudaPeekAtLastError();
  if (status == cudaSuccess || status == cudaErrorNotReady) return {};
  return std::string("; CUDA says ") + cudaGetErrorName(status) + ": " +
         cudaGetErrorString(status) +
         ": an earlier operation on the device may be the cause, which compute-sanitizer names";
}

}  // namespace spillway
