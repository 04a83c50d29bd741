// Vectors in GCC's and clang's extensions: 4 lanes, no intrinsics. They are the fast path of
// processors other than x86-64 (ARM NEON), and on x86-64 a third witness of the same bits. avx2.hpp
// and avx512.hpp are its twins: they have the same names for `kWidth` lanes. Sums, differences,
// products and quotients of a Float are the compilers' operators.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/base/dtype.hpp"

namespace spillway::simd::portable {

using Float = float __attribute__((vector_size(16)));
using Double = double __attribute__((vector_size(16)));      ///< half of the lanes
using Half = std::uint16_t __attribute__((vector_size(8)));  ///< elements of 16 bits
using Int = std::uint32_t __attribute__((vector_size(16)));  ///< 32 bits a lane
using Signed = std::int32_t __attribute__((vector_size(16)));
using Bytes = std::uint8_t __attribute__((vector_size(8)));  ///< elements of 8 bits, 2 * kWidth
inline constexpr std::size_t kWidth = 4;

template <class Vector>
inline Vector read(const void* p) {
  Vector x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

inline Float set(float x) { return Float{x, x, x, x}; }
inline Float load(const float* p) { return read<Float>(p); }
inline void store(float* p, Float x) { std::memcpy(p, &x, sizeof x); }
/// Stores past the caches where the processor can; `fence` orders it with later stores.
inline void stream(float* p, Float x) { store(p, x); }
inline void fence() {}
/// Uses `x` for nothing, so that its load stays.
inline void consume(Float x) {
#if defined(__x86_64__)
  asm volatile("" : : "x"(x));
#else
  asm volatile("" : : "w"(x));
#endif
}
inline Half load_half(const void* p) { return read<Half>(p); }
inline void store_half(void* p, Half x) { std::memcpy(p, &x, sizeof x); }
inline void stream_half(void* p, Half x) { store_half(p, x); }

inline Int set_int(std::uint32_t x) { return Int{x, x, x, x}; }
inline Int iota() { return Int{0, 1, 2, 3}; }
inline Int bits(Float x) { return std::bit_cast<Int>(x); }
inline Float from_bits(Int x) { return std::bit_cast<Float>(x); }
inline Int choose_int(Signed mask, Int a, Int b) {
  const auto chosen = std::bit_cast<Int>(mask);
  return (a & chosen) | (b & ~chosen);
}
inline Float choose(Signed mask, Float a, Float b) {
  return from_bits(choose_int(mask, bits(a), bits(b)));
}
/// Truncates; anything for a NaN.
inline Int to_int(Float x) {
  return std::bit_cast<Int>(__builtin_convertvector(choose(x == x, x, set(0)), Signed));
}
inline Float to_float(Int x) { return __builtin_convertvector(std::bit_cast<Signed>(x), Float); }
inline Int add_int(Int a, Int b) { return a + b; }
inline Int mul_int(Int a, Int b) { return a * b; }
inline Int and_int(Int a, Int b) { return a & b; }
inline Int or_int(Int a, Int b) { return a | b; }
inline Int xor_int(Int a, Int b) { return a ^ b; }
inline Int max_unsigned(Int a, Int b) { return choose_int(a > b, a, b); }
template <int Count>
inline Int shift_right(Int x) {
  return x >> Count;
}
/// Fills with copies of the sign.
template <int Count>
inline Int shift_right_signed(Int x) {
  return std::bit_cast<Int>(std::bit_cast<Signed>(x) >> Count);
}
template <int Count>
inline Int shift_left(Int x) {
  return x << Count;
}
/// The lower 16 bits of each lane of `low`, the upper ones of `high`.
inline Int join_halves(Int low, Int high) { return (low & 0xffffU) | (high & 0xffff0000U); }
/// bits(x) + increment, but bits(x) where x is NaN: an addition could end it.
inline Int add_to_number(Float x, Int increment) {
  return bits(x) + (increment & std::bit_cast<Int>(x == x));
}
inline Int one_more_where_at_least(Int count, Float y, Float threshold) {
  return count - std::bit_cast<Int>(y >= threshold);  // a lane of all ones is -1
}
inline std::uint32_t largest_lane(Int x) {
  return std::max(std::max(x[0], x[1]), std::max(x[2], x[3]));
}

inline Float sqrt(Float a) {
  return Float{std::sqrt(a[0]), std::sqrt(a[1]), std::sqrt(a[2]), std::sqrt(a[3])};
}
/// a * b + c, rounded once.
inline Float fma(Float a, Float b, Float c) {
  return Float{std::fma(a[0], b[0], c[0]), std::fma(a[1], b[1], c[1]), std::fma(a[2], b[2], c[2]),
               std::fma(a[3], b[3], c[3])};
}
/// c - a * b, rounded once.
inline Float fnma(Float a, Float b, Float c) { return fma(-a, b, c); }
/// Gives the second operand where either is NaN, as the x86 instructions do.
inline Float max(Float a, Float b) { return choose(a > b, a, b); }
inline Float min(Float a, Float b) { return choose(a < b, a, b); }
/// Nearest integer, ties to even.
inline Float round(Float a) {
  return Float{std::nearbyintf(a[0]), std::nearbyintf(a[1]), std::nearbyintf(a[2]),
               std::nearbyintf(a[3])};
}
/// a where x < 0, else b.
inline Float select_negative(Float x, Float a, Float b) { return choose(x < set(0), a, b); }
/// Adds the upper half to the lower until one lane is left; so does `largest` with max.
inline float sum(Float a) { return (a[0] + a[2]) + (a[1] + a[3]); }
inline float largest(Float a) {
  const float even = a[0] > a[2] ? a[0] : a[2];
  const float odd = a[1] > a[3] ? a[1] : a[3];
  return even > odd ? even : odd;
}
/// -1, 1, or `a` itself where that is zero or NaN.
inline Float sign(Float a) {
  const Float zero = set(0);
  return choose((a < zero) | (a > zero), from_bits((bits(a) & 0x80000000U) | bits(set(1))), a);
}
/// `x` where `from` has no sign, else -x.
inline Float with_sign_of(Float x, Float from) {
  return from_bits(bits(x) ^ (bits(from) & 0x80000000U));
}

inline Int widen_half(Half x) { return __builtin_convertvector(x, Int); }
inline Int widen_signed(Half x) {
  return std::bit_cast<Int>(std::bit_cast<Signed>(widen_half(x) << 16) >> 16);
}
inline Half low_half(Int x) {
  return Half{static_cast<std::uint16_t>(x[0]), static_cast<std::uint16_t>(x[1]),
              static_cast<std::uint16_t>(x[2]), static_cast<std::uint16_t>(x[3])};
}
/// 2 * kWidth bytes, two in the halves of each lane.
inline Int load_bytes(const std::byte* p) {
  using Shorts = std::uint16_t __attribute__((vector_size(16)));
  return std::bit_cast<Int>(__builtin_convertvector(read<Bytes>(p), Shorts));
}
inline Int load_signed_bytes(const std::byte* p) {
  using SignedBytes = std::int8_t __attribute__((vector_size(8)));
  using SignedShorts = std::int16_t __attribute__((vector_size(16)));
  return std::bit_cast<Int>(__builtin_convertvector(read<SignedBytes>(p), SignedShorts));
}
/// The bytes that are the halves of each lane, in [0, 255].
inline Bytes pack_unsigned(Int x) {
  using Shorts = std::uint16_t __attribute__((vector_size(16)));
  return __builtin_convertvector(std::bit_cast<Shorts>(x), Bytes);
}
/// The same, signed, from -128 on; more than 127 becomes 127.
inline Bytes pack_signed(Int x) {
  using SignedShorts = std::int16_t __attribute__((vector_size(16)));
  const auto halves = std::bit_cast<SignedShorts>(x);
  const SignedShorts above = halves > 127;
  const SignedShorts most = halves - halves + 127;
  return pack_unsigned(std::bit_cast<Int>((halves & ~above) | (most & above)));
}
inline void store_bytes(std::byte* p, Bytes x) { std::memcpy(p, &x, sizeof x); }
inline void stream_bytes(std::byte* p, Bytes x) { store_bytes(p, x); }
/// The even and the odd ones of 2 * kWidth neighbours.
inline Float even_places(Float a, Float b) { return Float{a[0], a[2], b[0], b[2]}; }
inline Float odd_places(Float a, Float b) { return Float{a[1], a[3], b[1], b[3]}; }
/// Entries of a table of any size.
inline Float look_up(const float* table, Int index) {
  return Float{table[index[0]], table[index[1]], table[index[2]], table[index[3]]};
}

inline Float from_fp16(Half x) {
  return Float{spillway::from_fp16(x[0]), spillway::from_fp16(x[1]), spillway::from_fp16(x[2]),
               spillway::from_fp16(x[3])};
}
inline Half to_fp16(Float x) {
  return Half{spillway::to_fp16(x[0]), spillway::to_fp16(x[1]), spillway::to_fp16(x[2]),
              spillway::to_fp16(x[3])};
}
inline Float from_bf16(Half x) { return from_bits(widen_half(x) << 16); }
/// bits + increment, upper half; NaN is made quiet instead, as an addition could end it.
inline Half round_bf16(Float x, Int increment) {
  const Int rounded = (bits(x) + increment) >> 16;
  return low_half(choose_int(x == x, rounded, (bits(x) >> 16) | set_int(0x40)));
}

inline Double zero_double() { return Double{0, 0}; }
inline Double low(Float x) { return Double{x[0], x[1]}; }
inline Double high(Float x) { return Double{x[2], x[3]}; }
inline Double add_square(Double x, Double sum) { return x * x + sum; }  // the square is exact
inline void store_double(double* p, Double x) { std::memcpy(p, &x, sizeof x); }

#include "runtime/base/simd/common.inl"
#include "runtime/base/simd/tails.inl"

}  // namespace spillway::simd::portable
