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
/// "fp32", "bf16" or "fp16"; throws `Error{invalid_argument}` otherwise.
DType parse_dtype(std::string_view name);

/// bfloat16 bits of `value`, to nearest with ties away from zero: the rule for *parameters*, which
/// makes master = bits + signed 16-bit remainder exactly reversible. NaN stays NaN.
constexpr std::uint16_t parameter_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x8000U) >> 16);
}

/// bfloat16 bits of `value`, to nearest with ties to even: the rule for gradients and activations.
constexpr std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

constexpr float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// IEEE binary16 bits of `value`, to nearest even, subnormals kept, overflow to infinity.
std::uint16_t to_fp16(float value);
float from_fp16(std::uint16_t bits);

}  // namespace spillway
