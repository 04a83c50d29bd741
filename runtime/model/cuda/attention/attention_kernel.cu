#include <algorithm>
#include <limits>

#include "runtime/base/cuda/kernel.cuh"
#include "runtime/base/team.hpp"
#include "runtime/model/cuda/attention/attention_kernel.hpp"
#include "runtime/model/cuda/kernels/bodies/attention.hpp"

namespace spillway::model::cuda {
namespace {

using bodies::kAttentionLanes;
using Team = DeviceTeam<kAttentionLanes>;

struct Forward {
  template <class T>
  __device__ void operator()(const bodies::AttentionForwardCall<T>& call, std::uint64_t tile,
                             float* shared) const {
    attend(Team{}, call, tile, shared);
  }
};
struct BackwardQ {
  template <class T>
  __device__ void operator()(const bodies::AttentionBackwardCall<T>& call, std::uint64_t tile,
                             float* shared) const {
    attend_backward_q(Team{}, call, tile, shared);
  }
};
struct BackwardKv {
  template <class T>
  __device__ void operator()(const bodies::AttentionBackwardCall<T>& call, std::uint64_t tile,
                             float* shared) const {
    attend_backward_kv(Team{}, call, tile, shared);
  }
};

template <class Pass, class Call>
__global__ void __launch_bounds__(kAttentionLanes) attention_tiles(Call call, std::uint64_t tiles) {
  auto* const shared = reinterpret_cast<float*>(block_memory());
  // The last tiles see the most keys: they start first.
  for (std::uint64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
    Pass{}(call, tiles - 1 - i, shared);
    __syncthreads();  // before the next tile takes the shared memory
  }
}

template <class Pass, class Call>
void launch(void* stream, const Call& call, std::uint64_t tiles, std::uint64_t floats) {
  if (tiles == 0) return;
  const auto kernel = attention_tiles<Pass, Call>;
  const auto bytes = static_cast<int>(floats * sizeof(float));
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "asking for an attention kernel's shared memory");
  const auto blocks =
      static_cast<unsigned>(std::min<std::uint64_t>(tiles, std::numeric_limits<int>::max()));
  launch_kernel("launching an attention kernel",
                {.blocks = blocks,
                 .threads = kAttentionLanes,
                 .shared_bytes = static_cast<std::size_t>(bytes),
                 .stream = static_cast<cudaStream_t>(stream)},
                kernel, call, tiles);
}

bodies::AttentionSize size_of_call(const AttentionShape& shape) {
  return {.batch = shape.batch,
          .sequence = shape.sequence,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)))};
}

template <class T>
bodies::Heads<const T> heads(const HeadRows<ConstTensor>& rows) {
  return {reinterpret_cast<const T*>(rows.data.address()), rows.stride};
}
template <class T>
bodies::Heads<T> heads(const HeadRows<Tensor>& rows) {
  return {reinterpret_cast<T*>(rows.data.address()), rows.stride};
}

template <class T>
void forward(void* stream, const AttentionShape& shape, const AttentionForwardArguments& a) {
  const bodies::AttentionForwardCall<T> call{.size = size_of_call(shape),
                                             .q = heads<T>(a.q),
                                             .k = heads<T>(a.k),
                                             .v = heads<T>(a.v),
                                             .out = heads<T>(a.out),
                                             .log_sum = a.log_sum.address()};
  launch<Forward>(stream, call, bodies::attention_tiles(shape.batch, shape.heads, shape.sequence),
                  bodies::attention_forward_floats(shape.head_dim));
}

template <class T>
void backward(void* stream, const AttentionShape& shape, const AttentionBackwardArguments& a) {
  const bodies::AttentionBackwardCall<T> call{
      .size = size_of_call(shape),
      .q = heads<T>(a.q),
      .k = heads<T>(a.k),
      .v = heads<T>(a.v),
      .out = heads<T>(a.out),
      .out_gradient = heads<T>(a.out_gradient),
      .q_gradient = heads<T>(a.q_gradient),
      .k_gradient = heads<T>(a.k_gradient),
      .v_gradient = heads<T>(a.v_gradient),
      .log_sum = a.log_sum.address(),
      .delta = reinterpret_cast<float*>(a.workspace.address())};
  launch<BackwardQ>(stream, call, bodies::attention_tiles(shape.batch, shape.heads, shape.sequence),
                    bodies::attention_q_floats(shape.head_dim));
  launch<BackwardKv>(stream, call,
                     bodies::attention_tiles(shape.batch, shape.kv_heads, shape.sequence),
                     bodies::attention_kv_floats(shape.head_dim));
}

}  // namespace

void check_own_attention(const AttentionShape& shape) {
  int device = 0;
  int limit = 0;
  check_cuda(cudaGetDevice(&device), "asking for the current device");
  check_cuda(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "asking for the device's shared memory");
  const std::uint64_t bytes = bodies::attention_kv_floats(shape.head_dim) * sizeof(float);
  check(bytes <= static_cast<std::uint64_t>(limit), ErrorCode::not_supported,
        "heads of " + std::to_string(shape.head_dim) + " elements need " + std::to_string(bytes) +
            " bytes of shared memory, and this GPU has " + std::to_string(limit) +
            ": use a model with smaller heads, or --device host");
}

void own_attention_forward(void* stream, DType compute, const AttentionShape& shape,
                           const AttentionForwardArguments& arguments) {
  switch (compute) {
    case DType::fp32: return forward<float>(stream, shape, arguments);
    case DType::bf16: return forward<bodies::Bf16>(stream, shape, arguments);
    case DType::fp16: return forward<bodies::Fp16>(stream, shape, arguments);
  }
}

void own_attention_backward(void* stream, DType compute, const AttentionShape& shape,
                            const AttentionBackwardArguments& arguments) {
  switch (compute) {
    case DType::fp32: return backward<float>(stream, shape, arguments);
    case DType::bf16: return backward<bodies::Bf16>(stream, shape, arguments);
    case DType::fp16: return backward<bodies::Fp16>(stream, shape, arguments);
  }
}

}  // namespace spillway::model::cuda
