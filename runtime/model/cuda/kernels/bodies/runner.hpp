// How kernels are run: each row-wise operation is an overload of
//
//   run(runner, compute, op)                   op: one of RowOp's
//
// over a Runner, which launches its bodies on a stream (../device_runner.cuh) or, in tests, calls
// them one after the other. So what is launched, with which arguments and how often, is the same
// code on both. A Runner has
//
//   runner.items(body, count)                  body(item) for every item < count, in any order
//   runner.template teams<Lanes>(body, count, shared_bytes)
//                                              body(team, index, shared) for every index < count
//   runner.zero(floats, count)
//
// Calls of one runner are ordered. A body is trivially copyable; its call operator is
// SPILLWAY_HOST_DEVICE. `shared` is 16-byte aligned, of a team alone, and holds anything at first;
// at most kSharedBytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "runtime/base/dtype.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/team.hpp"
#include "runtime/model/cuda/kernels/bodies/element.hpp"
#include "runtime/model/row_ops.hpp"

namespace spillway::model::cuda::bodies {

/// Bytes of shared memory that every device gives a thread block unasked.
inline constexpr std::size_t kSharedBytes = std::size_t{48} << 10;
/// Teams of kWarpLanes share thread blocks, so many in each.
inline constexpr unsigned kWarpsInBlock = 4;

/// Calls call(T{}) with the element type of `compute`.
template <class Call>
void with_element(DType compute, Call call) {
  switch (compute) {
    case DType::fp32: return call(float{});
    case DType::bf16: return call(Bf16{});
    case DType::fp16: return call(Fp16{});
  }
  throw Error(ErrorCode::invalid_argument, "unknown compute dtype");
}

template <unsigned N>
using PackSize = std::integral_constant<unsigned, N>;

/// Calls call(PackSize<kPack>{}) if `packed`, else call(PackSize<1>{}).
template <class Call>
void with_pack(bool packed, Call call) {
  if (packed) {
    call(PackSize<kPack>{});
  } else {
    call(PackSize<1>{});
  }
}

/// Whether packs can start at every address; null is no obstacle.
template <class... Pointer>
bool aligned(const Pointer*... addresses) {
  return ((reinterpret_cast<std::uintptr_t>(addresses) % kWordBytes == 0) && ...);
}
/// Whether every count of elements is whole packs, so that what follows stays aligned.
template <class... Count>
bool whole_packs(Count... counts) {
  return ((counts % kPack == 0) && ...);
}

template <class T>
const T* elements(ConstTensor tensor) {
  return reinterpret_cast<const T*>(tensor.address());
}
template <class T>
T* elements(Tensor tensor) {
  return reinterpret_cast<T*>(tensor.address());
}

/// Rows of heads, as HeadRows: row (t, h) starts at element t * stride + h * width.
template <class T>
struct Rows {
  T* data = nullptr;
  std::uint64_t stride = 0;

  SPILLWAY_HOST_DEVICE T* at(std::uint64_t token, std::uint64_t head, std::uint64_t width) const {
    return data + token * stride + head * width;
  }
};
template <class T>
Rows<const T> rows(HeadRows<ConstTensor> view) {
  return {elements<T>(view.data), view.stride};
}
template <class T>
Rows<T> rows(HeadRows<Tensor> view) {
  return {elements<T>(view.data), view.stride};
}
template <class... T>
bool rows_packed(Rows<T>... views) {
  return aligned(views.data...) && whole_packs(views.stride...);
}

}  // namespace spillway::model::cuda::bodies
