// Elementary functions of one value. On the device a reciprocal is the hardware's, within 1 ULP;
// the rest gives the host's bits.
#pragma once

#include <cmath>

#include "runtime/base/host_device.hpp"
#include "runtime/model/cuda/kernels/bodies/element.hpp"
#include "runtime/model/model_config.hpp"

#define SPILLWAY_LANE_FUNCTION SPILLWAY_HOST_DEVICE inline

namespace spillway::model::cuda::bodies {

/// Returns the first where neither is greater, or where either is NaN.
SPILLWAY_HOST_DEVICE inline float larger(float a, float b) { return b > a ? b : a; }

namespace one_lane {

using F = float;

SPILLWAY_LANE_FUNCTION F set(float x) { return x; }
SPILLWAY_LANE_FUNCTION F min(F a, F b) { return a < b ? a : b; }
SPILLWAY_LANE_FUNCTION F max(F a, F b) { return a > b ? a : b; }
SPILLWAY_LANE_FUNCTION F abs(F a) { return std::fabs(a); }
SPILLWAY_LANE_FUNCTION F round(F a) { return std::nearbyintf(a); }
SPILLWAY_LANE_FUNCTION F fma(F a, F b, F c) { return std::fmaf(a, b, c); }
SPILLWAY_LANE_FUNCTION F negative(F a) { return -a; }
SPILLWAY_LANE_FUNCTION F select_negative(F x, F a, F b) { return x < 0 ? a : b; }
SPILLWAY_LANE_FUNCTION F power_of_two(F n) {
  const float clean = n == n ? n : 0.0F;
  return float_of_bits((static_cast<std::uint32_t>(static_cast<int>(clean)) + 127U) << 23);
}
/// Returns 1 / x for x in [1, 2^126], within 1 ULP; less than 2^-126 where x is above.
SPILLWAY_LANE_FUNCTION F reciprocal(F x) {
#ifdef __CUDA_ARCH__
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return 1.0F / x;
#endif
}

#include "runtime/model/elementary.inl"

}  // namespace one_lane

using one_lane::exponential;
using one_lane::Value;

template <Activation Kind>
SPILLWAY_HOST_DEVICE inline Value activate(float x) {
  if constexpr (Kind == Activation::gelu_tanh) return one_lane::gelu_tanh(x);
  if constexpr (Kind == Activation::gelu_erf) return one_lane::gelu_erf(x);
  if constexpr (Kind == Activation::silu) return one_lane::silu(x);
}

}  // namespace spillway::model::cuda::bodies

#undef SPILLWAY_LANE_FUNCTION
