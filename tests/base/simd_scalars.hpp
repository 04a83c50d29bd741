// What each function of simd_functions.hpp gives in one lane, by arithmetic on one number.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>

namespace spillway::simd::test {

using Bits = std::uint32_t;

inline float number(Bits bits) { return std::bit_cast<float>(bits); }
inline Bits bits(float x) { return std::bit_cast<Bits>(x); }
inline Bits bits(std::int32_t x) { return std::bit_cast<Bits>(x); }
inline std::int32_t whole(Bits bits) { return std::bit_cast<std::int32_t>(bits); }

/// `x` in a format of 16 bits: the multiple of its place's unit that is nearest, or infinity.
inline float rounded(float x, int mantissa, int least_exponent, double beyond,
                     double (*nearest)(double)) {
  if (std::isnan(x) || std::isinf(x) || x == 0) return x;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(x), least_exponent) - mantissa);
  const double result = nearest(double{x} / unit) * unit;
  return std::copysign(static_cast<float>(std::fabs(result) >= beyond ? INFINITY : result), x);
}
inline float bf16(float x, double (*nearest)(double)) {
  return rounded(x, 7, -126, 0x1p128, nearest);
}

/// Sign, exponent and mantissa of IEEE's binary16.
inline float from_half(Bits bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const auto fraction = static_cast<float>(bits & 1023);
  const float special = fraction == 0 ? INFINITY : NAN;
  const float size = exponent == 31  ? special
                     : exponent == 0 ? std::ldexp(fraction, -24)
                                     : std::ldexp(fraction + 1024, exponent - 25);
  return std::copysign(size, (bits & 0x8000) != 0 ? -1.0F : 1.0F);
}

/// What one lane has to be: a number, of which any NaN is as good as another, or bits.
struct Expected {
  float (*number)(float a, float b, float c) = nullptr;
  Bits (*bits)(Bits a, Bits b, Bits c) = nullptr;
  bool (*promised)(float a) = [](float) { return true; };
};

inline bool is_small(float a) { return std::fabs(a) < 0x1p31F; }
inline bool is_exponent(float a) { return a == std::floor(a) && a >= -126 && a <= 127; }

/// The byte at `shift` in a lane, signed, as the half that begins there.
inline Bits signed_byte(Bits lane, unsigned shift) {
  const auto byte = static_cast<std::int8_t>(lane >> shift);
  return (bits(std::int32_t{byte}) & 0xffffU) << shift;
}

inline const std::map<std::string, Expected> kExpected{
    {"sqrt", {.number = [](float a, float, float) { return std::sqrt(a); }}},
    {"fma", {.number = [](float a, float b, float c) { return std::fma(a, b, c); }}},
    {"fnma", {.number = [](float a, float b, float c) { return std::fma(-a, b, c); }}},
    {"max", {.number = [](float a, float b, float) { return a > b ? a : b; }}},
    {"min", {.number = [](float a, float b, float) { return a < b ? a : b; }}},
    {"round", {.number = [](float a, float, float) { return std::nearbyintf(a); }}},
    {"select_negative", {.number = [](float a, float b, float c) { return a < 0 ? b : c; }}},
    {"sign", {.number = [](float a, float, float) { return a > 0   ? 1.0F
                                                           : a < 0 ? -1.0F
                                                                   : a; }}},
    {"with_sign_of", {.bits = [](Bits a, Bits b, Bits) { return a ^ (b >> 31 << 31); }}},
    {"abs", {.bits = [](Bits a, Bits, Bits) { return a << 1 >> 1; }}},
    {"power_of_two",
     {.number = [](float a, float, float) { return std::exp2(a); }, .promised = is_exponent}},
    {"bf16", {.number = [](float a, float, float) { return bf16(a, std::nearbyint); }}},
    {"parameter_bf16", {.number = [](float a, float, float) { return bf16(a, std::round); }}},
    {"fp16",
     {.number = [](float a, float, float) { return rounded(a, 10, -14, 0x1p16, std::nearbyint); }}},
    {"from_bf16", {.bits = [](Bits a, Bits, Bits) { return a << 16; }}},
    {"from_fp16", {.number = [](float a, float, float) { return from_half(bits(a) & 0xffff); }}},
    {"to_float",
     {.number = [](float a, float, float) { return static_cast<float>(whole(bits(a))); }}},
    {"to_int",
     {.bits = [](Bits a, Bits, Bits) { return bits(static_cast<std::int32_t>(number(a))); },
      .promised = is_small}},
    {"add_int", {.bits = [](Bits a, Bits b, Bits) { return a + b; }}},
    {"mul_int", {.bits = [](Bits a, Bits b, Bits) { return a * b; }}},
    {"and_int", {.bits = [](Bits a, Bits b, Bits) { return a & b; }}},
    {"or_int", {.bits = [](Bits a, Bits b, Bits) { return a | b; }}},
    {"xor_int", {.bits = [](Bits a, Bits b, Bits) { return a ^ b; }}},
    {"max_unsigned", {.bits = [](Bits a, Bits b, Bits) { return std::max(a, b); }}},
    {"shift_right", {.bits = [](Bits a, Bits, Bits) { return a >> 5; }}},
    {"shift_left", {.bits = [](Bits a, Bits, Bits) { return a << 5; }}},
    {"one_more_where_at_least",
     {.bits = [](Bits a, Bits b, Bits c) { return a + (number(b) >= number(c) ? 1 : 0); }}},
    {"half_of_int", {.bits = [](Bits a, Bits, Bits) { return bits(whole(a << 16) >> 16); }}},
    {"shift_right_signed", {.bits = [](Bits a, Bits, Bits) { return bits(whole(a) >> 5); }}},
    {"join_halves", {.bits = [](Bits a, Bits b, Bits) { return a % 65536 + b / 65536 * 65536; }}},
    {"pack_upper", {.bits = [](Bits a, Bits b, Bits) { return a / 65536 + b / 65536 * 65536; }}},
    {"pack_lower", {.bits = [](Bits a, Bits b, Bits) { return a % 65536 + b * 65536; }}},
    {"add_to_number",
     {.bits = [](Bits a, Bits b, Bits) { return std::isnan(number(a)) ? a : a + b; }}},
    {"pair_even", {.bits = [](Bits a, Bits, Bits) { return a * 65536; }}},
    {"pair_odd", {.bits = [](Bits a, Bits, Bits) { return a / 65536 * 65536; }}},
    {"pack_signed",
     {.bits =
          [](Bits a, Bits, Bits) {
            return std::min(a & 0x1ffU, 127U) + (std::min(a >> 16 & 0x1ffU, 127U) << 16);
          }}},
    {"signed_bytes",
     {.bits = [](Bits a, Bits, Bits) { return signed_byte(a, 0) + signed_byte(a, 16); }}},
    {"pack_unsigned", {.bits = [](Bits a, Bits, Bits) { return a & 0xff00ffU; }}},
};

}  // namespace spillway::simd::test
