// What nvcc knows by itself: the words of device code, the position of a thread, barriers and
// shuffles; and how a kernel is launched. Sources of kernels are compiled with this header ahead of
// them, as nvcc does, and with __CUDACC__ defined.
#pragma once

#include <cuda_runtime_api.h>

#include <bit>
#include <cstring>
#include <functional>
#include <source_location>
#include <utility>

#define __host__
#define __device__
#define __global__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)

namespace cuda_emulation {

/// Of the running block; `shared_object` gives the same address to each of its threads.
[[nodiscard]] std::byte* shared_memory();
[[nodiscard]] void* shared_object(const void* type, std::size_t size, std::size_t alignment);

/// Return when every thread of the block, or of the warp, has called it at the same `site`. Abort
/// the program where one never does.
void block_barrier(const std::source_location& site);
void warp_barrier(const std::source_location& site);
/// A barrier of the warp; returns the `bits` of lane `from`.
[[nodiscard]] std::uint64_t exchange(std::uint64_t bits, unsigned from,
                                     const std::source_location& site);

struct KernelLaunch {
  const void* kernel;
  const char* name;  ///< which has the types of its parameters in it
  std::uint64_t blocks;
  std::uint64_t threads;
  std::size_t shared_bytes;
  cudaStream_t stream;
  bool flushes_denormals;
};
[[nodiscard]] cudaError_t enqueue_kernel(const KernelLaunch& launch, std::function<void()> thread);
[[nodiscard]] cudaError_t allow_shared_memory(const void* kernel, cudaFuncAttribute attribute,
                                              int bytes);

template <class T>
T shuffle(T value, unsigned from, const std::source_location& site) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = exchange(bits, from, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cuda_emulation

// Of the thread that runs at the moment.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads(std::source_location site = std::source_location::current()) {
  ::cuda_emulation::block_barrier(site);
}
inline void __syncwarp(std::source_location site = std::source_location::current()) {
  ::cuda_emulation::warp_barrier(site);
}
template <class T>
T __shfl_down_sync(unsigned /*mask*/, T value, unsigned distance,
                   std::source_location site = std::source_location::current()) {
  const unsigned lane = threadIdx.x % 32;
  return ::cuda_emulation::shuffle(value, lane + distance < 32 ? lane + distance : lane, site);
}
template <class T>
T __shfl_sync(unsigned /*mask*/, T value, unsigned from,
              std::source_location site = std::source_location::current()) {
  return ::cuda_emulation::shuffle(value, from % 32, site);
}
inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline void __stwb(uint4* target, uint4 value) { *target = value; }

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

// nvcc --ftz=true, for a source that is compiled with it.
#ifdef SPILLWAY_FLUSHES_DENORMALS
static constexpr bool kFlushesDenormals = true;
#else
static constexpr bool kFlushesDenormals = false;
#endif

template <bool FlushesDenormals = kFlushesDenormals, class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const auto volume = [](const dim3& size) { return std::uint64_t{size.x} * size.y * size.z; };
  // The arguments are copied as the kernel's parameters before this returns, as CUDA does.
  auto thread = [kernel, ... values = Parameters(std::forward<Arguments>(arguments))] {
    kernel(values...);
  };
  return ::cuda_emulation::enqueue_kernel({.kernel = reinterpret_cast<const void*>(kernel),
                                           .name = static_cast<const char*>(__PRETTY_FUNCTION__),
                                           .blocks = volume(config->gridDim),
                                           .threads = volume(config->blockDim),
                                           .shared_bytes = config->dynamicSmemBytes,
                                           .stream = config->stream,
                                           .flushes_denormals = FlushesDenormals},
                                          std::move(thread));
}

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  return ::cuda_emulation::allow_shared_memory(reinterpret_cast<const void*>(kernel), attribute,
                                               value);
}

namespace spillway {

// runtime/base/cuda/kernel.cuh's, which nvcc places.
inline std::byte* block_memory() { return ::cuda_emulation::shared_memory(); }
template <class T>
T& block_object() {
  static const char type = 0;
  return *static_cast<T*>(::cuda_emulation::shared_object(&type, sizeof(T), alignof(T)));
}

}  // namespace spillway
