// The CUDA backend on any CudaApi: make_cuda_backend with the runtime's, tests with their own.
#pragma once

#include <memory>

#include "offload/cuda/cuda_backend.hpp"
#include "offload/cuda/detail/cuda_api.hpp"

namespace spillway::offload::cuda {

[[nodiscard]] std::unique_ptr<DeviceBackend> make_backend(std::unique_ptr<CudaApi> api,
                                                          const CudaBackendOptions& options);

}  // namespace spillway::offload::cuda
