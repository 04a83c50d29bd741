// Elementary functions in fp32: the formulas of runtime/model/host/kernel_math.hpp, one value at a
// time. On the device a reciprocal is the hardware's, within 1 ULP; the rest gives the host's bits.
#pragma once

#include <cmath>

#include "runtime/base/host_device.hpp"
#include "runtime/model/cuda/bodies/element.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::model::cuda::bodies {

/// The first where neither is greater, or where either is NaN.
SPILLWAY_HOST_DEVICE inline float larger(float a, float b) { return b > a ? b : a; }

/// e^x within 2 ULP on [-87.3, 88.3], clamped to that range (never Inf, never 0). NaN stays NaN.
SPILLWAY_HOST_DEVICE inline float exponential(float x) {
  x = larger(x, -87.3F);
  x = x > 88.3F ? 88.3F : x;
  const float n = std::nearbyintf(x * 1.44269504F);
  float r = std::fmaf(n, -0x1.62e400p-1F, x);  // ln 2 in two parts, the first exact times n
  r = std::fmaf(n, -0x1.7f7d1cp-20F, r);
  float tail = 0x1.6c69f8p-10F;  // (e^r - 1 - r) / r^2 on [-ln 2 / 2, ln 2 / 2]
  tail = std::fmaf(tail, r, 0x1.120b5cp-7F);
  tail = std::fmaf(tail, r, 0x1.5555bap-5F);
  tail = std::fmaf(tail, r, 0x1.5554dep-3F);
  tail = std::fmaf(tail, r, 0.5F);
  const float e = std::fmaf(tail * r, r, r) + 1.0F;
  const float clean = n == n ? n : 0.0F;
  return e * float_of_bits((static_cast<std::uint32_t>(static_cast<int>(clean)) + 127U) << 23);
}

/// 1 / x for x in [1, 2^126]; less than 2^-126 where x is above. Within 1 ULP.
SPILLWAY_HOST_DEVICE inline float reciprocal(float x) {
#ifdef __CUDA_ARCH__
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return 1.0F / x;
#endif
}

/// An activation function's value and slope at a point.
struct Value {
  float value, slope;
};

/// x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), which is HF's tanh form without
/// cancellation.
SPILLWAY_HOST_DEVICE inline Value gelu_tanh(float x) {
  const float square = x * x;
  const float two_u = x * std::fmaf(square, 0.0713548163F, 1.59576912F);
  const float e = exponential(-two_u);
  const float s = reciprocal(1.0F + e);
  const float two_u_slope = std::fmaf(square, 0.214064449F, 1.59576912F);
  return {x * s, std::fmaf(x * two_u_slope, s * s * e, s)};
}

/// x * Phi(x). Phi by erfc(z) = exp(-z^2) * P(1 / (1 + 0.4 z)), |relative error of P| < 1.4e-9.
SPILLWAY_HOST_DEVICE inline Value gelu_erf(float x) {
  const float z = std::fabs(x) * 0.707106781F;
  const float t = reciprocal(std::fmaf(z, 0.4F, 1.0F));
  float p = -0.0394414266F;
  p = std::fmaf(p, t, 0.254799365F);
  p = std::fmaf(p, t, -0.642278419F);
  p = std::fmaf(p, t, 0.756171032F);
  p = std::fmaf(p, t, -0.477701354F);
  p = std::fmaf(p, t, 0.390976160F);
  p = std::fmaf(p, t, 0.0805730525F);
  p = std::fmaf(p, t, 0.228347325F);
  p = std::fmaf(p, t, 0.222627232F);
  p = std::fmaf(p, t, 0.225936909F);
  p = std::fmaf(p, t, -9.87502110e-6F);
  const float e = exponential(-(z * z));
  const float half_erfc = 0.5F * e * p;
  const float phi = x < 0 ? half_erfc : 1.0F - half_erfc;
  return {x * phi, std::fmaf(x * 0.398942280F, e, phi)};
}

/// x * sigmoid(x).
SPILLWAY_HOST_DEVICE inline Value silu(float x) {
  const float e = exponential(-x);
  const float s = reciprocal(1.0F + e);
  return {x * s, std::fmaf(x, s * s * e, s)};
}

template <Activation Kind>
SPILLWAY_HOST_DEVICE inline Value activate(float x) {
  if constexpr (Kind == Activation::gelu_tanh) return gelu_tanh(x);
  if constexpr (Kind == Activation::gelu_erf) return gelu_erf(x);
  if constexpr (Kind == Activation::silu) return silu(x);
}

}  // namespace spillway::model::cuda::bodies
