// Elements of the compute dtypes, loaded and stored as fp32, one by one or in packs that the device
// moves in 16-byte words. Host and device give the same bits, but for those of a NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "runtime/base/dtype.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/host_device.hpp"

namespace spillway::model::cuda::bodies {

struct Bf16 {
  std::uint16_t bits;
};
struct Fp16 {
  std::uint16_t bits;
};
static_assert(sizeof(Bf16) == 2 && sizeof(Fp16) == 2);

/// Number of elements that a lane moves at once where addresses allow.
inline constexpr unsigned kPack = 8;
inline constexpr unsigned kWordBytes = 16;

template <unsigned N>
struct Pack {
  float lane[N];
};

SPILLWAY_HOST_DEVICE inline float float_of_bits(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

SPILLWAY_HOST_DEVICE inline float widen(float x) { return x; }
SPILLWAY_HOST_DEVICE inline float widen(Bf16 x) {
  return float_of_bits(static_cast<std::uint32_t>(x.bits) << 16);
}
SPILLWAY_HOST_DEVICE inline float widen(Fp16 x) {
#ifdef __CUDA_ARCH__
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
#else
  return from_fp16(x.bits);
#endif
}

/// Rounds to nearest, ties to even.
SPILLWAY_HOST_DEVICE inline void narrow(float* p, float x) { *p = x; }
SPILLWAY_HOST_DEVICE inline void narrow(Bf16* p, float x) {
#ifdef __CUDA_ARCH__
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(p->bits) : "f"(x));
#else
  p->bits = to_bf16(x);
#endif
}
SPILLWAY_HOST_DEVICE inline void narrow(Fp16* p, float x) {
#ifdef __CUDA_ARCH__
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(p->bits) : "f"(x));
#else
  p->bits = to_fp16(x);
#endif
}

#ifdef __CUDACC__

/// Packs two neighbours into a 32-bit register, the first in the lower half.
template <class T>
__device__ inline std::uint32_t narrow_two(float first, float second) {
  std::uint32_t result;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
  }
  return result;
}

template <class T>
__device__ inline Pack<kPack> load_words(const T* p) {
  constexpr unsigned kInWord = kWordBytes / sizeof(T);
  Pack<kPack> result;
#pragma unroll
  for (unsigned i = 0; i < kPack / kInWord; ++i) {
    const uint4 word = reinterpret_cast<const uint4*>(p)[i];
    const std::uint32_t part[4] = {word.x, word.y, word.z, word.w};
    float* lane = result.lane + i * kInWord;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      if constexpr (sizeof(T) == 4) {
        lane[j] = __uint_as_float(part[j]);
      } else {
        lane[2 * j] = widen(T{static_cast<std::uint16_t>(part[j])});
        lane[2 * j + 1] = widen(T{static_cast<std::uint16_t>(part[j] >> 16)});
      }
    }
  }
  return result;
}

/// An assignment becomes four stores, and CUDA's __stwb faults in shared memory, where sums of a
/// team may lie: it stores to global addresses alone.
__device__ inline void store_word(uint4* p, const std::uint32_t (&part)[4]) {
  asm volatile("st.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(p), "r"(part[0]), "r"(part[1]), "r"(part[2]), "r"(part[3])
               : "memory");
}

template <class T>
__device__ inline void store_words(T* p, const Pack<kPack>& values) {
  constexpr unsigned kInWord = kWordBytes / sizeof(T);
#pragma unroll
  for (unsigned i = 0; i < kPack / kInWord; ++i) {
    const float* lane = values.lane + i * kInWord;
    std::uint32_t part[4];
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      if constexpr (sizeof(T) == 4) {
        part[j] = __float_as_uint(lane[j]);
      } else {
        part[j] = narrow_two<T>(lane[2 * j], lane[2 * j + 1]);
      }
    }
    store_word(reinterpret_cast<uint4*>(p) + i, part);
  }
}

#endif  // __CUDACC__

/// Loads `N` elements, 1 or kPack; for a pack `p` is 16-byte aligned.
template <unsigned N, class T>
SPILLWAY_HOST_DEVICE inline Pack<N> load(const T* p) {
  static_assert(N == 1 || N == kPack);
  Pack<N> result;
#ifdef __CUDA_ARCH__
  if constexpr (N == kPack) {
    result = load_words(p);
  } else {
    result.lane[0] = widen(*p);
  }
#else
  SPILLWAY_ASSERT(N == 1 || reinterpret_cast<std::uintptr_t>(p) % kWordBytes == 0);
  for (unsigned i = 0; i < N; ++i) result.lane[i] = widen(p[i]);
#endif
  return result;
}

template <unsigned N, class T>
SPILLWAY_HOST_DEVICE inline void store(T* p, const Pack<N>& values) {
  static_assert(N == 1 || N == kPack);
#ifdef __CUDA_ARCH__
  if constexpr (N == kPack) {
    store_words(p, values);
  } else {
    narrow(p, values.lane[0]);
  }
#else
  SPILLWAY_ASSERT(N == 1 || reinterpret_cast<std::uintptr_t>(p) % kWordBytes == 0);
  for (unsigned i = 0; i < N; ++i) narrow(p + i, values.lane[i]);
#endif
}

/// Makes a pack of operation(i) of each lane i.
template <unsigned N, class Operation>
SPILLWAY_HOST_DEVICE inline Pack<N> map(Operation operation) {
  Pack<N> result;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (unsigned i = 0; i < N; ++i) result.lane[i] = operation(i);
  return result;
}

template <unsigned N>
SPILLWAY_HOST_DEVICE inline Pack<N> filled(float x) {
  return map<N>([=](unsigned) { return x; });
}

template <unsigned N>
SPILLWAY_HOST_DEVICE inline Pack<N> operator+(const Pack<N>& a, const Pack<N>& b) {
  return map<N>([&](unsigned i) { return a.lane[i] + b.lane[i]; });
}

}  // namespace spillway::model::cuda::bodies
