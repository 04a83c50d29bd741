// Arrays of Python in host memory, with checks of what is in them.
#pragma once

#include <fmt/format.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/dtype.hpp"
#include "runtime/base/error.hpp"

namespace spillway::python {

/// An array of any element type in host memory, in one piece: a tensor of PyTorch, numpy or JAX.
using Array = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;
using Wide = nanobind::ndarray<float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using ConstSums =
    nanobind::ndarray<const double, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using ConstWide =
    nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

/// Returns the array's bytes. Throws `Error{invalid_argument}` unless it has elements of `dtype`,
/// or whole numbers of 16 bits that are those of a 16-bit type: numpy has no other name for
/// bfloat16.
inline std::span<const std::byte> bytes_of(const Array& array, DType dtype, std::uint64_t elements,
                                           const std::string& what) {
  const nanobind::dlpack::dtype type = array.dtype();
  const nanobind::dlpack::dtype wanted =
      dtype == DType::bf16
          ? nanobind::dlpack::dtype{static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Bfloat),
                                    16, 1}
          : nanobind::dlpack::dtype{static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::Float),
                                    static_cast<std::uint8_t>(8 * size_of(dtype)), 1};
  const nanobind::dlpack::dtype bits{static_cast<std::uint8_t>(nanobind::dlpack::dtype_code::UInt),
                                     16, 1};
  check(type == wanted || (size_of(dtype) == 2 && type == bits), ErrorCode::invalid_argument,
        fmt::format("{} has elements of {} bits (DLPack's type {}); it must be {}", what, type.bits,
                    type.code, name_of(dtype)));
  check(array.size() == elements, ErrorCode::invalid_argument,
        fmt::format("{} has {} elements; its parameter has {}", what, array.size(), elements));
  return {static_cast<const std::byte*>(array.data()), array.nbytes()};
}

/// Returns one of the three arrays of a state, empty where it is None.
template <class Result, class Source>
std::span<Result> optional_span(const std::optional<Source>& array, std::uint64_t elements) {
  if (!array) return {};
  check(array->size() == elements, ErrorCode::invalid_argument,
        fmt::format("an array of state has {} elements; its parameter has {}", array->size(),
                    elements));
  return {array->data(), array->size()};
}

}  // namespace spillway::python
