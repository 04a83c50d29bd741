// The tokenizer of a run: checks that the data's tokens are those of the model, and keeps the
// tokenizer for exports.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace spillway::engine {

/// Throws `Error{invalid_argument}` if the token files of `data` were made with another tokenizer
/// than `model`, an HF checkpoint or a run, has. No effect if either does not record its tokenizer.
void check_tokenizer(const std::filesystem::path& data, const std::filesystem::path& model);

/// Returns where a checkpoint or a run has the files of its tokenizer.
[[nodiscard]] std::filesystem::path tokenizer_directory(const std::filesystem::path& model);

/// What lies in the run's place for them already: of the run, or left by a start that was killed.
enum class OldTokenizer : std::uint8_t { stays, goes };

struct TokenizerToKeep {
  std::filesystem::path run;
  std::optional<std::filesystem::path> from;  ///< the checkpoint or run that it starts from
  std::filesystem::path data;
  OldTokenizer old = OldTokenizer::stays;
};

/// Copies the files of the tokenizer to the run, unless it has them: those of the checkpoint or run
/// that it starts from, else of the tokenizer that its data was made with, as far as it is there.
void keep_tokenizer(const TokenizerToKeep& keep);

}  // namespace spillway::engine
