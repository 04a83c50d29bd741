#include "runtime/base/state_format.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"

namespace spillway {

std::string_view name_of(StateFormat format) {
  switch (format) {
    case StateFormat::fp32: return "fp32";
    case StateFormat::split: return "split";
    case StateFormat::bf16: return "bf16";
    case StateFormat::int8: return "int8";
  }
  return "unknown";
}

StateFormat parse_state_format(std::string_view name) {
  for (const StateFormat format :
       {StateFormat::fp32, StateFormat::split, StateFormat::bf16, StateFormat::int8}) {
    if (name == name_of(format)) return format;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("unknown state format \"{}\"; use fp32, split, bf16 or int8", name));
}

}  // namespace spillway
