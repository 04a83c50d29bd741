// What one thread, or one warp, of the kernels over gradients does: accumulation, rounding, and the
// sum of squares of a leaf. The host runs it for every thread to test it.
#pragma once

#include <cstddef>

#include "cpu_adam/cuda/detail/elements.hpp"
#include "runtime/base/team.hpp"
#include "runtime/base/units.hpp"

namespace spillway::cpu_adam::cuda::detail {

/// Cuts a pass between an array of `dtype` and one of fp32.
inline Cut conversion_cut(DType dtype, const void* narrow, const float* wide, std::size_t count) {
  return make_cut(count, {{narrow, size_of(dtype)}, {wide, sizeof(float)}});
}

/// Sets target[i] = (first ? 0 : target[i]) + source[i].
template <DType Type>
SPILLWAY_HOST_DEVICE void accumulate_thread(const void* source, float* target, bool first,
                                            const Cut& cut, std::size_t thread,
                                            std::size_t threads) {
  walk(cut, thread, threads, [&](auto count, std::size_t start) {
    constexpr std::size_t kCount = decltype(count)::value;
    const auto addend = load<BitsOf<Type>, kCount>(source, start);
    Vector<float, kCount> sum{};
    if (!first) sum = load<float, kCount>(target, start);
    for (std::size_t j = 0; j < kCount; ++j) sum.values[j] += widen<Type>(addend.values[j]);
    store(target, start, sum);
  });
}

/// Sets target[i] = source[i], rounded as gradients are.
template <DType Type>
SPILLWAY_HOST_DEVICE void round_thread(const float* source, void* target, const Cut& cut,
                                       std::size_t thread, std::size_t threads) {
  walk(cut, thread, threads, [&](auto count, std::size_t start) {
    constexpr std::size_t kCount = decltype(count)::value;
    const auto wide = load<float, kCount>(source, start);
    Vector<BitsOf<Type>, kCount> rounded;
    for (std::size_t j = 0; j < kCount; ++j) rounded.values[j] = narrow<Type>(wide.values[j]);
    store(target, start, rounded);
  });
}

/// Returns the sum of squares of `count` elements from `gradient` on, at most one leaf, in the tree
/// of gradient_norm.hpp: its 32 partial sums are the lanes'. On every lane.
template <DType Type, class Warp>
SPILLWAY_HOST_DEVICE double leaf_sum(const Warp& warp, const BitsOf<Type>* gradient,
                                     std::size_t count) {
  // Loads that are under way together: a lane has but two or four bytes in each.
  constexpr std::size_t kLoads = 16;
  typename Warp::template Lanes<double> sums;
  warp.each([&](unsigned lane) {
    double sum = 0;
    std::size_t i = lane;
    for (; i + (kLoads - 1) * kWarpLanes < count; i += kLoads * kWarpLanes) {
      BitsOf<Type> bits[kLoads];
      for (std::size_t k = 0; k < kLoads; ++k) bits[k] = gradient[i + k * kWarpLanes];
      for (std::size_t k = 0; k < kLoads; ++k) {
        const double x = widen<Type>(bits[k]);
        sum += x * x;
      }
    }
    for (; i < count; i += kWarpLanes) {
      const double x = widen<Type>(gradient[i]);
      sum += x * x;
    }
    sums[lane] = sum;
  });
  return warp.reduce(sums, [](double a, double b) { return a + b; });
}

/// Sums the leaves of warp `number` of `warps`.
template <DType Type, class Warp>
SPILLWAY_HOST_DEVICE void sum_squares_warp(const Warp& warp, const void* gradient,
                                           std::size_t count, double* leaves, std::size_t number,
                                           std::size_t warps) {
  const auto* const elements = static_cast<const BitsOf<Type>*>(gradient);
  for (std::size_t leaf = number; leaf * kLeafParameters < count; leaf += warps) {
    const std::size_t first = leaf * kLeafParameters;
    const std::size_t rest = count - first;
    const double sum =
        leaf_sum<Type>(warp, elements + first, rest < kLeafParameters ? rest : kLeafParameters);
    warp.each([&](unsigned lane) {
      if (lane == 0) leaves[leaf] = sum;
    });
  }
}

}  // namespace spillway::cpu_adam::cuda::detail
