// Buffers of known values for tests of collectives, and the sums that the contract promises, which
// are computed here in the plainest way.
#pragma once

#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "comm/communicator.hpp"

namespace spillway::comm {

using Buffer = std::vector<std::byte>;

inline Buffer encoded(const std::vector<float>& values, DType dtype) {
  Buffer buffer(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::fp32) {
      std::memcpy(&buffer[i * sizeof(float)], &values[i], sizeof(float));
      continue;
    }
    const std::uint16_t bits = dtype == DType::bf16 ? to_bf16(values[i]) : to_fp16(values[i]);
    std::memcpy(&buffer[i * sizeof bits], &bits, sizeof bits);
  }
  return buffer;
}

/// The values that rank `rank` contributes: different for every rank and position, and such that a
/// type of 16 bits holds them exactly.
inline std::vector<float> values_of(std::uint32_t rank, std::size_t count, DType dtype) {
  std::mt19937 random(1000 * rank + 7);
  std::uniform_real_distribution<float> values(-1e3F, 1e3F);
  std::vector<float> result(count);
  for (float& value : result) {
    value = values(random);
    if (dtype == DType::bf16) value = from_bf16(to_bf16(value));
    if (dtype == DType::fp16) value = from_fp16(to_fp16(value));
  }
  return result;
}

inline Buffer data_of(std::uint32_t rank, std::size_t count, DType dtype = DType::fp32) {
  return encoded(values_of(rank, count, dtype), dtype);
}

/// The sum of the data of all ranks, added in fp32 in their order and rounded once.
inline Buffer sum_of(std::uint32_t ranks, std::size_t count, SumTypes types) {
  std::vector<float> sum = values_of(0, count, types.addend);
  for (std::uint32_t rank = 1; rank < ranks; ++rank) {
    const std::vector<float> values = values_of(rank, count, types.addend);
    for (std::size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return encoded(sum, types.result);
}

/// The data of all ranks, one after the other.
inline Buffer concatenated(std::uint32_t ranks, std::size_t count) {
  Buffer all;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const Buffer data = data_of(rank, count);
    all.insert(all.end(), data.begin(), data.end());
  }
  return all;
}

/// Part `rank` of a buffer of all ranks.
inline std::span<std::byte> part_of(Buffer& all, std::uint32_t rank, std::uint32_t ranks) {
  const std::size_t size = all.size() / ranks;
  return std::span{all}.subspan(size * rank, size);
}

}  // namespace spillway::comm
