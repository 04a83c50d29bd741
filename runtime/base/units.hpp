// The quantities of Spillway, and the two constants that every part shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/strong.hpp"

namespace spillway {

using Bytes = Strong<struct BytesTag>;
using FileOffset = Strong<struct FileOffsetTag>;
using ElementCount = Strong<struct ElementCountTag>;
using StepIndex = Strong<struct StepIndexTag>;
using BlockIndex = Strong<struct BlockIndexTag, std::uint32_t>;
using TileIndex = Strong<struct TileIndexTag, std::uint32_t>;
using Rank = Strong<struct RankTag, std::uint32_t>;

/// Parameters in one leaf: the unit of padding, of tile and shard starts, and of the tree that sums
/// the gradient norm.
inline constexpr std::uint64_t kLeafParameters = 4096;

/// Alignment of every buffer that a device, a disk or a vector register may touch, in bytes.
inline constexpr std::size_t kPageBytes = 4096;

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return Bytes{n}; }
constexpr Bytes operator""_KiB(unsigned long long n) { return Bytes{n << 10}; }
constexpr Bytes operator""_MiB(unsigned long long n) { return Bytes{n << 20}; }
constexpr Bytes operator""_GiB(unsigned long long n) { return Bytes{n << 30}; }
}  // namespace literals

/// Returns the smallest multiple of `unit` that is not below `n`. `unit` is not 0.
constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// Reads "512MiB", "24GB", "24g", "4096" as bytes, in any case: iB and single letters are binary,
/// KB to TB powers of 1000. Throws `Error{invalid_argument}` naming the text for anything else.
Bytes parse_bytes(std::string_view text);

/// Writes "1.50 GiB": three digits and the largest binary unit that leaves at least 1.
std::string format_bytes(Bytes bytes);

}  // namespace spillway
