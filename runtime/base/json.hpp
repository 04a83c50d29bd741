// The one reader of JSON from files and from other programs: strict, bounded, and with errors that
// say which text is wrong. Whoever looks into a document includes the library itself.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "runtime/base/error.hpp"

namespace spillway {

/// What a text is and how an error tells of it.
struct JsonSource {
  std::string_view origin;  ///< begins every message: a path, or what stands for one
  ErrorCode code = ErrorCode::corrupt_data;
  std::size_t most_levels = 32;  ///< of objects and lists, one inside another
};

/// Throws `Error{source.code}` for anything that is not one JSON document, has a key twice in an
/// object, or nests deeper than `source.most_levels`. Keys are in alphabetical order.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const JsonSource& source);
/// Parses likewise and keeps the order of keys. Finding one of many is slow.
[[nodiscard]] nlohmann::ordered_json parse_ordered_json(std::string_view text,
                                                        const JsonSource& source);
/// Returns null for a text that `parse_json` throws for.
[[nodiscard]] nlohmann::json json_or_null(std::string_view text);

/// Returns the value as JSON text for a message, at most about 80 characters.
[[nodiscard]] std::string brief(const nlohmann::ordered_json& value);
/// Whether a document can hold the text.
[[nodiscard]] bool is_utf8(std::string_view text);
/// Returns a name from a file for a message: quoted, control characters escaped, at most about 80
/// characters.
[[nodiscard]] std::string brief_name(std::string_view name);

}  // namespace spillway
