// Text from files and users, made safe to show: what a terminal would obey is written out instead.
#pragma once

#include <string>
#include <string_view>

namespace spillway::cli {

/// Returns a name as the inside of a JSON string: quotes, backslashes and control characters
/// escaped, bytes that are not UTF-8 replaced, and characters that turn the direction of writing
/// written out.
[[nodiscard]] std::string printable_name(std::string_view name);

/// Returns a message as it is, but for what controls a terminal; lines stay lines.
[[nodiscard]] std::string printable_message(std::string_view message);

}  // namespace spillway::cli
