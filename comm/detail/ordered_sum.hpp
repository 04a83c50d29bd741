// The sum that all backends share: element by element over ranks 0, 1, 2, ... in fp32, rounded
// once. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "runtime/base/dtype.hpp"

namespace spillway::comm::detail {

inline float load_element(const std::byte* element, DType dtype) {
  if (dtype == DType::fp32) {
    float value = 0;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, element, sizeof bits);
  return dtype == DType::bf16 ? from_bf16(bits) : from_fp16(bits);
}

inline void store_element(std::byte* element, float value, DType dtype) {
  if (dtype == DType::fp32) {
    std::memcpy(element, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = dtype == DType::bf16 ? to_bf16(value) : to_fp16(value);
  std::memcpy(element, &bits, sizeof bits);
}

/// `target` becomes the sum of `ranks` buffers of its size; `buffer(r)` is where rank r's begins.
/// It may be one of them: an element is written after the last of its addends is read.
template <class BufferOfRank>
void ordered_sum(std::uint32_t ranks, BufferOfRank buffer, std::span<std::byte> target,
                 DType dtype) {
  const std::size_t step = size_of(dtype);
  for (std::size_t offset = 0; offset < target.size(); offset += step) {
    float sum = load_element(buffer(0) + offset, dtype);
    for (std::uint32_t rank = 1; rank < ranks; ++rank) {
      sum += load_element(buffer(rank) + offset, dtype);
    }
    store_element(target.data() + offset, sum, dtype);
  }
}

}  // namespace spillway::comm::detail
