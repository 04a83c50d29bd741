// Elementary functions, written once for lanes of every kind: included inside a namespace that has
// the type F and set, min, max, abs, round, fma, negative, reciprocal, power_of_two and
// select_negative (runtime/base/simd/portable.hpp says what they mean), by a file that defines
// SPILLWAY_LANE_FUNCTION, how functions are declared there. All give the same bits, but for the
// reciprocal of a device.

/// Returns e^x within 2 ULP, x clamped to [-87.3, 88.3] (never Inf, never 0). NaN stays NaN.
SPILLWAY_LANE_FUNCTION F exponential(F x) {
  x = min(set(88.3F), max(set(-87.3F), x));
  const F n = round(x * set(1.44269504F));
  F r = fma(n, set(-0x1.62e400p-1F), x);  // ln 2 in two parts, the first exact times n
  r = fma(n, set(-0x1.7f7d1cp-20F), r);
  F tail = set(0x1.6c69f8p-10F);  // (e^r - 1 - r) / r^2 on [-ln 2 / 2, ln 2 / 2]
  tail = fma(tail, r, set(0x1.120b5cp-7F));
  tail = fma(tail, r, set(0x1.5555bap-5F));
  tail = fma(tail, r, set(0x1.5554dep-3F));
  tail = fma(tail, r, set(0.5F));
  const F e = fma(tail * r, r, r) + set(1.0F);
  return e * power_of_two(n);
}

/// An activation function's value and slope at a point.
struct Value {
  F value, slope;
};

/// Makes x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), which is HF's tanh form without
/// cancellation.
SPILLWAY_LANE_FUNCTION Value gelu_tanh(F x) {
  const F square = x * x;
  const F two_u = x * fma(square, set(0.0713548163F), set(1.59576912F));
  const F e = exponential(negative(two_u));
  const F s = reciprocal(set(1.0F) + e);
  const F two_u_slope = fma(square, set(0.214064449F), set(1.59576912F));
  return {x * s, fma(x * two_u_slope, s * s * e, s)};
}

/// Makes x * Phi(x) by erfc(z) = exp(-z^2) * P(1 / (1 + 0.4 z)), |relative error of P| < 1.4e-9.
SPILLWAY_LANE_FUNCTION Value gelu_erf(F x) {
  const F z = abs(x) * set(0.707106781F);
  const F t = reciprocal(fma(z, set(0.4F), set(1.0F)));
  F p = set(-0.0394414266F);
  p = fma(p, t, set(0.254799365F));
  p = fma(p, t, set(-0.642278419F));
  p = fma(p, t, set(0.756171032F));
  p = fma(p, t, set(-0.477701354F));
  p = fma(p, t, set(0.390976160F));
  p = fma(p, t, set(0.0805730525F));
  p = fma(p, t, set(0.228347325F));
  p = fma(p, t, set(0.222627232F));
  p = fma(p, t, set(0.225936909F));
  p = fma(p, t, set(-9.87502110e-6F));
  const F e = exponential(negative(z * z));
  const F half_erfc = set(0.5F) * e * p;
  const F phi = select_negative(x, half_erfc, set(1.0F) - half_erfc);
  return {x * phi, fma(x * set(0.398942280F), e, phi)};
}

/// Makes x * sigmoid(x).
SPILLWAY_LANE_FUNCTION Value silu(F x) {
  const F e = exponential(negative(x));
  const F s = reciprocal(set(1.0F) + e);
  return {x * s, fma(x, s * s * e, s)};
}
