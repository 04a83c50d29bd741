// How kernels are started and where the memory that a thread block shares lies. All that only nvcc
// can read is here; the rest of our device code is C++ with CUDA's names.
#pragma once

#include <cuda_runtime.h>
#include <cxxabi.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/cuda/check.hpp"

namespace spillway {

struct Launch {
  unsigned blocks = 0;
  unsigned threads = 0;          ///< of a block
  std::size_t shared_bytes = 0;  ///< what `block_memory` gives; above 48 KiB the kernel asks first
  cudaStream_t stream = nullptr;
};

/// Returns a kernel's name with the types of its template; empty where CUDA does not tell it.
inline std::string name_of_kernel(const void* kernel) {
  const char* mangled = nullptr;
  if (cudaFuncGetName(&mangled, kernel) != cudaSuccess || mangled == nullptr) return {};
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr), &std::free);
  return name != nullptr ? name.get() : mangled;
}

/// Enqueues `kernel`. Throws `Error{device_error}` that names it if CUDA does not take it;
/// `what` was started.
template <class... Parameters, class... Arguments>
void launch_kernel(std::string_view what, const Launch& launch, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch.blocks);
  config.blockDim = dim3(launch.threads);
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = launch.stream;
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (status == cudaSuccess) [[likely]] {
    return;
  }
  const std::string name = name_of_kernel(reinterpret_cast<const void*>(kernel));
  static_cast<void>(cudaGetLastError());  // it is reported here, and not of a later launch
  check_cuda(status, name.empty() ? std::string(what) : std::string(what) + " (" + name + ")");
}

#ifdef __NVCC__

/// Launch::shared_bytes of the block, at a multiple of 16. Undefined at first.
__device__ inline std::byte* block_memory() {
  extern __shared__ __align__(16) std::byte memory[];
  return memory;
}

/// The block's object of the type, besides `block_memory`. Undefined at first.
template <class T>
__device__ T& block_object() {
  __shared__ T object;
  return object;
}

#endif  // __NVCC__

}  // namespace spillway
