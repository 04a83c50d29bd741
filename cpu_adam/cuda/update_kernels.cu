// The update in formats fp32, split and bf16: as fast as memory, 28 bytes a parameter in fp32.
#include "cpu_adam/cuda/detail/launch.cuh"
#include "cpu_adam/cuda/detail/launches.hpp"

namespace spillway::cpu_adam::cuda::detail {
namespace {

template <StateFormat Format, DType Gradient>
__global__ void __launch_bounds__(kThreads) update_kernel(const __grid_constant__ UpdateJob job) {
  const std::size_t thread = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  update_thread<Format, Gradient>(job, thread, std::size_t{gridDim.x} * blockDim.x);
}

template <StateFormat Format>
void launch(const UpdateJob& job, DType gradient, void* stream) {
  const unsigned grid = grid_of(job.cut.work(), kThreads);
  with_dtype(gradient, [&](auto type) {
    start("the update on the GPU", grid, stream, update_kernel<Format, decltype(type)::value>, job);
  });
}

}  // namespace

void launch_update(const UpdateJob& job, StateFormat format, DType gradient, void* stream) {
  switch (format) {
    case StateFormat::fp32: launch<StateFormat::fp32>(job, gradient, stream); break;
    case StateFormat::split: launch<StateFormat::split>(job, gradient, stream); break;
    case StateFormat::bf16: launch<StateFormat::bf16>(job, gradient, stream); break;
    case StateFormat::int8: SPILLWAY_ASSERT(false && "int8 has its own kernel");
  }
}

}  // namespace spillway::cpu_adam::cuda::detail
