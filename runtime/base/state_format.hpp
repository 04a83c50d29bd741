// In which precision an optimizer keeps master weights and moments between steps.
#pragma once

#include <cstdint>
#include <string_view>

namespace spillway {

/// State that is kept of a parameter between steps. `fp32`: everything in fp32. `split`: the master
/// as its bf16 parameter and a 16-bit remainder; `bf16` and `int8`: the moments shorter too.
/// cpu_adam/state_format.hpp has the layouts.
enum class StateFormat : std::uint8_t { fp32, split, bf16, int8 };

std::string_view name_of(StateFormat format);
/// Reads "fp32", "split", "bf16" or "int8"; throws `Error{invalid_argument}` otherwise.
StateFormat parse_state_format(std::string_view name);

}  // namespace spillway
