// The caller's arrays: what makes one usable, and DLPack's view of it. Any thread may call anything
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/dtype.hpp"
#include "runtime/capi/spillway.h"

namespace spillway::capi {

/// An array in host memory or in that of a GPU, read once from the caller's structure. It owns
/// nothing.
struct Tensor {
  DType dtype;
  std::span<const std::int64_t> shape;
  std::uint64_t elements;
  std::span<const std::byte> bytes;
  std::int32_t device;
  std::int32_t device_index;
};

/// Returns the array. Throws `Error{not_supported}` for one in other memory, and
/// `Error{invalid_argument}` if the structure describes none. `what`: for messages.
[[nodiscard]] Tensor read_tensor(const spillway_tensor* given, std::string_view what);

/// Throws `Error{not_supported}` unless the host can read the array.
void check_on_host(const Tensor& tensor, std::string_view what);

/// Returns "[2, 3]".
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace spillway::capi
