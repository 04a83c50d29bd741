// How the kernels of a device move elements: eight neighbours at a time in vectors of 16 bytes
// where every array of a pass is aligned for it, one at a time elsewhere. For any thread, on the
// host too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "runtime/base/dtype.hpp"
#include "runtime/base/host_device.hpp"

namespace spillway::cpu_adam::cuda::detail {

/// Elements of a whole part: 16 bytes of a 16-bit type.
inline constexpr std::size_t kPart = 8;

template <class T, std::size_t Count>
inline constexpr std::size_t kVectorAlignment =
    Count == 1 ? alignof(T) : std::min<std::size_t>(16, Count * sizeof(T));

template <class T, std::size_t Count>
struct alignas(kVectorAlignment<T, Count>) Vector {
  T values[Count];
};

/// Returns elements [first, first + Count) of the array at `base`, aligned as `Vector<T, Count>`
/// there.
template <class T, std::size_t Count>
SPILLWAY_HOST_DEVICE Vector<T, Count> load(const void* base, std::size_t first) {
  return *reinterpret_cast<const Vector<T, Count>*>(static_cast<const T*>(base) + first);
}

template <class T, std::size_t Count>
SPILLWAY_HOST_DEVICE void store(void* base, std::size_t first, const Vector<T, Count>& vector) {
  *reinterpret_cast<Vector<T, Count>*>(static_cast<T*>(base) + first) = vector;
}

/// Type of the bits of an element of `Type`.
template <DType Type>
using BitsOf = std::conditional_t<Type == DType::fp32, float, std::uint16_t>;

template <DType Type>
SPILLWAY_HOST_DEVICE inline float widen(BitsOf<Type> bits) {
  if constexpr (Type == DType::fp32) return bits;
  if constexpr (Type == DType::bf16) return from_bf16(bits);
  if constexpr (Type == DType::fp16) return from_fp16(bits);
}

/// Rounds as gradients are rounded.
template <DType Type>
SPILLWAY_HOST_DEVICE inline BitsOf<Type> narrow(float value) {
  if constexpr (Type == DType::fp32) return value;
  if constexpr (Type == DType::bf16) return to_bf16(value);
  if constexpr (Type == DType::fp16) return to_fp16(value);
}

template <DType Type>
using Constant = std::integral_constant<DType, Type>;

/// Calls, on the host, body(the type as a constant).
template <class Body>
void with_dtype(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::fp32: return body(Constant<DType::fp32>{});
    case DType::bf16: return body(Constant<DType::bf16>{});
    case DType::fp16: return body(Constant<DType::fp16>{});
  }
}

/// Division of a pass over `count` elements: `head` single ones, `parts` whole parts, the rest
/// single ones again.
struct Cut {
  std::size_t count = 0;
  std::size_t head = 0;
  std::size_t parts = 0;

  [[nodiscard]] SPILLWAY_HOST_DEVICE std::size_t singles() const { return count - parts * kPart; }
  /// Number of threads that find something to do.
  [[nodiscard]] std::size_t work() const { return std::max(parts, singles()); }
};

/// One array of a pass; absent if the address is null.
struct Array {
  const void* address;
  std::size_t element_size;
};

/// Whether whole parts may start at element `first`.
inline bool vectors_start_at(std::size_t first, std::initializer_list<Array> arrays) {
  return std::all_of(arrays.begin(), arrays.end(), [first](const Array& array) {
    const auto address = reinterpret_cast<std::uintptr_t>(array.address);
    const std::size_t alignment = std::min<std::size_t>(16, kPart * array.element_size);
    return array.address == nullptr || (address + first * array.element_size) % alignment == 0;
  });
}

/// Returns the cut with the smallest head; no whole part where the arrays are never aligned
/// together.
inline Cut make_cut(std::size_t count, std::initializer_list<Array> arrays) {
  for (std::size_t head = 0; head < kPart && head < count; ++head) {
    if (vectors_start_at(head, arrays)) {
      return {.count = count, .head = head, .parts = (count - head) / kPart};
    }
  }
  return {.count = count};
}

/// Runs the share of thread `thread` of `threads` in a pass: body(elements as a constant, first).
template <class Body>
SPILLWAY_HOST_DEVICE void walk(const Cut& cut, std::size_t thread, std::size_t threads,
                               const Body& body) {
  for (std::size_t part = thread; part < cut.parts; part += threads) {
    body(std::integral_constant<std::size_t, kPart>{}, cut.head + part * kPart);
  }
  const std::size_t singles = cut.singles();
  for (std::size_t i = thread; i < singles; i += threads) {
    body(std::integral_constant<std::size_t, 1>{}, i < cut.head ? i : i + cut.parts * kPart);
  }
}

}  // namespace spillway::cpu_adam::cuda::detail
