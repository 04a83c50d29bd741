// JSON files that the program writes for itself and that nobody else may change: the last key is a
// checksum of all the others, and reading accepts only the exact text that was written.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace spillway::engine {

/// Returns the text of a file at `path` with `document`, an object, and with "format" and "xxh3"
/// (XXH3-64, hexadecimal) added. Throws `Error{invalid_argument}` for more than can be read again.
[[nodiscard]] std::string sealed_text(const std::filesystem::path& path, nlohmann::json document);
/// Replaces `path` by that; durable when it returns.
void write_sealed_json(const std::filesystem::path& path, nlohmann::json document);

/// Returns the document that was written. Throws `Error{corrupt_data}` unless the file holds it to
/// the bit, `Error{not_supported}` for a format of another version.
[[nodiscard]] nlohmann::json read_sealed_json(const std::filesystem::path& path);

}  // namespace spillway::engine
