// The small files of an HF checkpoint that say how text becomes tokens and how to generate: a run
// keeps them, and its exports carry them.
//
// Threads: functions without state; any thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace spillway::model {

/// Their names among the files of `directory`; none where it is not there.
[[nodiscard]] std::vector<std::string> tokenizer_files(const std::filesystem::path& directory);

/// Copies them to `target`, which is created, durable and whole or not at all; nothing where there
/// are none or `target` exists.
void copy_tokenizer_files(const std::filesystem::path& directory,
                          const std::filesystem::path& target);

/// The text of one of them.
[[nodiscard]] std::string read_tokenizer_file(const std::filesystem::path& path);

/// Eight hexadecimal digits that two tokenizers share if they have the same tokens with the same
/// ids and the same merges, however their files are written: the CRC-32 of "ID TOKEN" lines in
/// order of id and then of the merges' lines, joined by line feeds. `path`: a tokenizer.json, or a
/// directory with one; absent without it. Throws `Error{corrupt_data}` if it is no tokenizer.
[[nodiscard]] std::optional<std::string> tokenizer_fingerprint(const std::filesystem::path& path);

}  // namespace spillway::model
