// JSON as a file format: no duplicate key, no deep nesting, errors that name the file.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "runtime/base/error.hpp"

namespace spillway::model::detail {

/// Keeps the order of keys, so that a configuration is written as it was read.
using OrderedJson = nlohmann::ordered_json;

inline constexpr std::size_t kMaxJsonDepth = 32;

/// Throws `Error{code}` naming `origin` for anything that is not one JSON document, repeats a key
/// in an object, or nests deeper than `kMaxJsonDepth`.
[[nodiscard]] OrderedJson parse_strict_json(std::string_view text, std::string_view origin,
                                            ErrorCode code);

/// Returns the same for objects of many keys, in alphabetical order: each is found in logarithmic
/// time, where `OrderedJson` looks through all of them.
[[nodiscard]] nlohmann::json parse_strict_table(std::string_view text, std::string_view origin,
                                                ErrorCode code);

/// Returns the value as JSON text for a message, at most about 80 characters.
[[nodiscard]] std::string brief(const OrderedJson& value);
/// Returns a name from a file for a message: quoted, control characters escaped, at most about 80
/// characters.
[[nodiscard]] std::string brief_name(std::string_view name);

}  // namespace spillway::model::detail
