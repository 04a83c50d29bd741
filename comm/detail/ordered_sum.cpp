#include "comm/detail/ordered_sum.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace spillway::comm::detail {
namespace {

/// So many sums are kept in fp32 at a time: 4 KiB, which stay in the nearest cache.
constexpr std::size_t kBlock = 1024;

using Sums = std::array<float, kBlock>;

template <DType kType>
float load(const std::byte* addend, std::size_t index) {
  if constexpr (kType == DType::fp32) {
    float value = 0;
    std::memcpy(&value, addend + index * sizeof value, sizeof value);
    return value;
  } else {
    std::uint16_t bits = 0;
    std::memcpy(&bits, addend + index * sizeof bits, sizeof bits);
    return kType == DType::bf16 ? from_bf16(bits) : from_fp16(bits);
  }
}

template <DType kType>
void store(std::byte* result, std::size_t index, float value) {
  if constexpr (kType == DType::fp32) {
    std::memcpy(result + index * sizeof value, &value, sizeof value);
  } else {
    const std::uint16_t bits = kType == DType::bf16 ? to_bf16(value) : to_fp16(value);
    std::memcpy(result + index * sizeof bits, &bits, sizeof bits);
  }
}

template <DType kAddend, DType kResult>
void sum(std::span<const std::byte* const> addends, std::byte* result, std::size_t count) {
  Sums sums;
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t size = std::min(kBlock, count - first);
    for (std::size_t i = 0; i < size; ++i) sums[i] = load<kAddend>(addends[0], first + i);
    for (const std::byte* const addend : addends.subspan(1)) {
      for (std::size_t i = 0; i < size; ++i) sums[i] += load<kAddend>(addend, first + i);
    }
    for (std::size_t i = 0; i < size; ++i) store<kResult>(result, first + i, sums[i]);
  }
}

}  // namespace

void ordered_sum(std::span<const std::byte* const> addends, std::span<std::byte> result,
                 SumTypes types) {
  const std::size_t count = result.size() / size_of(types.result);
  const bool widened = types.result == DType::fp32;
  switch (types.addend) {
    case DType::fp32: return sum<DType::fp32, DType::fp32>(addends, result.data(), count);
    case DType::bf16:
      return widened ? sum<DType::bf16, DType::fp32>(addends, result.data(), count)
                     : sum<DType::bf16, DType::bf16>(addends, result.data(), count);
    case DType::fp16:
      return widened ? sum<DType::fp16, DType::fp32>(addends, result.data(), count)
                     : sum<DType::fp16, DType::fp16>(addends, result.data(), count);
  }
}

}  // namespace spillway::comm::detail
