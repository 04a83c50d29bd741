// In place of cuda_runtime.cpp in a build without CUDA.
#include "offload/cuda/detail/cuda_api.hpp"

namespace spillway::offload::cuda {

std::unique_ptr<CudaApi> make_cuda_api() { return nullptr; }

}  // namespace spillway::offload::cuda
