// Accumulation, rounding and the sum of squares of gradients.
#include "cpu_adam/cuda/detail/gradient_body.hpp"
#include "cpu_adam/cuda/detail/launch.cuh"
#include "cpu_adam/cuda/device_update.hpp"

namespace spillway::cpu_adam::cuda {
namespace {

using namespace detail;

__device__ std::size_t thread_number() {
  return std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ std::size_t thread_count() { return std::size_t{gridDim.x} * blockDim.x; }

template <DType Type>
__global__ void __launch_bounds__(kThreads)
    accumulate_kernel(const void* source, float* target, bool first, Cut cut) {
  accumulate_thread<Type>(source, target, first, cut, thread_number(), thread_count());
}

template <DType Type>
__global__ void __launch_bounds__(kThreads)
    round_kernel(const float* source, void* target, Cut cut) {
  round_thread<Type>(source, target, cut, thread_number(), thread_count());
}

template <DType Type>
__global__ void __launch_bounds__(kThreads)
    sum_squares_kernel(const void* gradient, std::size_t count, double* leaves) {
  sum_squares_warp<Type>(WarpTeam{}, gradient, count, leaves, thread_number() / kWarpLanes,
                         thread_count() / kWarpLanes);
}

}  // namespace

void sum_squares(DType dtype, const void* gradient, std::size_t count, double* leaves,
                 void* stream) {
  if (count == 0) return;
  const std::size_t leaf_count = (count + kLeafParameters - 1) / kLeafParameters;
  const unsigned grid = grid_of(leaf_count, kThreads / kWarpLanes);
  with_dtype(dtype, [&](auto type) {
    start("the sum of squares on the GPU", grid, stream, sum_squares_kernel<decltype(type)::value>,
          gradient, count, leaves);
  });
}

void accumulate(DType dtype, const void* source, float* target, std::size_t count, bool first,
                void* stream) {
  if (count == 0) return;
  const Cut cut = conversion_cut(dtype, source, target, count);
  with_dtype(dtype, [&](auto type) {
    start("accumulation on the GPU", grid_of(cut.work(), kThreads), stream,
          accumulate_kernel<decltype(type)::value>, source, target, first, cut);
  });
}

void round_gradient(DType dtype, const float* source, void* target, std::size_t count,
                    void* stream) {
  if (count == 0) return;
  const Cut cut = conversion_cut(dtype, target, source, count);
  with_dtype(dtype, [&](auto type) {
    start("rounding on the GPU", grid_of(cut.work(), kThreads), stream,
          round_kernel<decltype(type)::value>, source, target, cut);
  });
}

void copy(void* target, const void* source, std::size_t bytes, void* stream) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream_of(stream)),
             "a copy");
}

void fill_zero(void* target, std::size_t bytes, void* stream) {
  if (bytes == 0) return;
  check_cuda(cudaMemsetAsync(target, 0, bytes, stream_of(stream)), "clearing");
}

}  // namespace spillway::cpu_adam::cuda
