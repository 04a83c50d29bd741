// The CUDA implementation in a build without CUDA.
#include "runtime/base/error.hpp"
#include "runtime/model/cuda/cuda_ops.hpp"

namespace spillway::model::cuda {

// NOLINTNEXTLINE(performance-unnecessary-value-param): where there is CUDA it is kept
std::unique_ptr<CudaOps> make_ops(CudaOpsOptions /*options*/) {
  throw Error(ErrorCode::not_supported,
              "this build has no CUDA backend: use --device host, or build where nvcc and the "
              "headers of cuBLAS and cuDNN are found (tools/setup cuda)");
}

}  // namespace spillway::model::cuda
