#include "runtime/base/dtype.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"

namespace spillway {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::fp32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::fp16: return "fp16";
  }
  return "unknown";
}

DType parse_dtype(std::string_view name) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    if (name == name_of(dtype)) return dtype;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unknown element type \"{}\"; use fp32, bf16 or fp16", name));
}

std::uint16_t to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {  // NaN: quiet, upper payload kept, as F16C does
    return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  }
  if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);
  if (magnitude < 0x33000001U) return sign;  // at most half of the smallest subnormal, 2^-25
  std::uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  // Bits that do not fit: 13 in the normal range, more below 2^-14.
  const int shift = exponent >= -14 ? 13 : 13 + (-14 - exponent);
  const std::uint32_t half = 1U << (shift - 1);
  const std::uint32_t odd = (mantissa >> shift) & 1U;
  mantissa = (mantissa + half - 1 + odd) >> shift;
  // In the normal range the implicit bit adds one to the exponent field; a carry adds another.
  const std::uint32_t base = exponent >= -14 ? static_cast<std::uint32_t>(exponent + 14) << 10 : 0;
  return static_cast<std::uint16_t>(sign | (base + mantissa));
}

float from_fp16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0x1f) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000U : 0;
    return std::bit_cast<float>(sign | 0x7f800000U | quiet | (mantissa << 13));
  }
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // exact, subnormal or zero
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

}  // namespace spillway
