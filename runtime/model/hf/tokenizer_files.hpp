// The small files of an HF checkpoint that say how text becomes tokens and how to generate: a run
// keeps them, and its exports carry them.
//
// Threads: functions without state; any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace spillway::model {

/// Returns their names among the files of `directory`; none where it is not there.
[[nodiscard]] std::vector<std::string> tokenizer_files(const std::filesystem::path& directory);

/// Copies them to `target`, which is created, durable and whole or not at all; does nothing where
/// there are none or `target` exists.
void copy_tokenizer_files(const std::filesystem::path& directory,
                          const std::filesystem::path& target);

/// Returns the text of one of them.
[[nodiscard]] std::string read_tokenizer_file(const std::filesystem::path& path);

}  // namespace spillway::model
