// JSON files that the program writes for itself and that nobody else may change: the last key is a
// checksum of all the others, and reading accepts only the exact text that was written.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace spillway::engine {

/// Value of "format" in these files: 1 had no checksum, 2 no run id.
inline constexpr int kSealedFormat = 3;

/// Returns the text of a file at `path` with `object`, the text of a document that has "format" and
/// is as nlohmann::json::dump(2) writes it, and with "xxh3" (XXH3-64, hexadecimal) at its end.
/// Throws `Error{invalid_argument}` for more than can be read again.
[[nodiscard]] std::string sealed_text(const std::filesystem::path& path, std::string object);
/// Replaces `path` by the sealed text of `document`, an object, with "format" added; durable when
/// it returns.
void write_sealed_json(const std::filesystem::path& path, nlohmann::json document);

/// Returns the text that was written. Throws `Error{corrupt_data}` unless the file holds it to the
/// bit, `Error{not_supported}` for a format of another version.
[[nodiscard]] std::string read_sealed_text(const std::filesystem::path& path);
/// Returns the document of a sealed file, without the checksum; throws the same.
[[nodiscard]] nlohmann::json read_sealed_json(const std::filesystem::path& path);

}  // namespace spillway::engine
