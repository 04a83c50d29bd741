// Element types of parameters, gradients and activations, and their exact conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace spillway {

enum class DType : std::uint8_t { fp32, bf16, fp16 };

constexpr std::size_t size_of(DType dtype) { return dtype == DType::fp32 ? 4 : 2; }
std::string_view name_of(DType dtype);
/// Reads "fp32", "bf16" or "fp16"; throws `Error{invalid_argument}` otherwise.
DType parse_dtype(std::string_view name);

/// Returns bfloat16 bits of `value`, to nearest with ties away from zero: the rule for
/// *parameters*, which makes master = bits + signed 16-bit remainder exactly reversible. NaN stays
/// NaN.
constexpr std::uint16_t parameter_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x8000U) >> 16);
}

/// Returns bfloat16 bits of `value`, to nearest with ties to even: the rule for gradients and
/// activations.
constexpr std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

constexpr float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Returns the IEEE binary16 bits of `value`, to nearest even, subnormals kept, overflow to
/// infinity.
constexpr std::uint16_t to_fp16(float value) {
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

constexpr float from_fp16(std::uint16_t bits) {
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
