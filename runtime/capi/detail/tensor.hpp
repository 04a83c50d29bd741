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

/// Is an array in host memory, read once from the caller's structure. It owns nothing.
struct HostTensor {
  DType dtype;
  std::span<const std::int64_t> shape;
  std::uint64_t elements;
  std::span<const std::byte> bytes;
};

/// Returns the array. Throws `Error{not_supported}` if the host cannot read it, and
/// `Error{invalid_argument}` if the structure describes none. `what`: for messages.
[[nodiscard]] HostTensor read_tensor(const spillway_tensor* given, std::string_view what);

/// Returns "[2, 3]".
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace spillway::capi
