// The priorities of streams, by the documentation of CUDA's runtime. They are kept and not obeyed:
// CUDA promises no order by them.
#include <algorithm>

#include "tests/support/cuda_emulation/device.hpp"
#include "tests/support/cuda_emulation/include/cuda_runtime.h"

namespace {

constexpr int kLast = 0;
constexpr int kFirst = -5;

}  // namespace

cudaError_t cudaDeviceGetStreamPriorityRange(int* last, int* first) {
  *last = kLast;
  *first = kFirst;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  const cuda_emulation::Device::Lock device;
  const cudaError_t status = cudaStreamCreateWithFlags(stream, flags);
  if (status == cudaSuccess) (*stream)->priority = std::clamp(priority, kFirst, kLast);
  return status;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  const cuda_emulation::Device::Lock device;
  if (!device->has(stream)) return cudaErrorInvalidResourceHandle;
  *priority = stream->priority;
  return cudaSuccess;
}
