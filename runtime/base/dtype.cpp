#include "runtime/base/dtype.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"

namespace spillway {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::fp32: return "fp32";
    case DType::bf16: return "bf16";
    case DType::fp16: return "fp16";
  }
  return "unknown";
}

DType parse_dtype(std::string_view name) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    if (name == name_of(dtype)) return dtype;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unknown element type \"{}\"; use fp32, bf16 or fp16", name));
}

}  // namespace spillway
