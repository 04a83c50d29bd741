// The update in format int8: a warp for each quantization block.
#include "cpu_adam/cuda/detail/launch.cuh"
#include "cpu_adam/cuda/detail/launches.hpp"

namespace spillway::cpu_adam::cuda::detail {
namespace {

__constant__ constexpr CodecTables kCodecTables = make_codec_tables();

template <DType Gradient>
__global__ void __launch_bounds__(kThreads)
    quantized_kernel(const __grid_constant__ QuantizedJob job) {
  // Lanes look up entries of their own: shared memory answers at once, constant memory one by one.
  CodecTables& tables = block_object<CodecTables>();
  constexpr unsigned kWords = sizeof(CodecTables) / sizeof(float);
  for (unsigned i = threadIdx.x; i < kWords; i += blockDim.x) {
    reinterpret_cast<float*>(&tables)[i] = reinterpret_cast<const float*>(&kCodecTables)[i];
  }
  __syncthreads();
  const std::size_t warps = std::size_t{gridDim.x} * (blockDim.x / kWarpLanes);
  const std::size_t warp = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarpLanes;
  const std::size_t blocks = job.blocks();
  for (std::size_t block = warp; block < blocks; block += warps) {
    update_quantized<Gradient>(WarpTeam{}, job, tables, block);
  }
}

}  // namespace

void launch_quantized(const QuantizedJob& job, DType gradient, void* stream) {
  const unsigned grid = grid_of(job.blocks(), kThreads / kWarpLanes);
  with_dtype(gradient, [&](auto type) {
    start("the update of quantized state on the GPU", grid, stream,
          quantized_kernel<decltype(type)::value>, job);
  });
}

}  // namespace spillway::cpu_adam::cuda::detail
