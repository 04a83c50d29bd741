// `spillway data`: texts to train.bin, val.bin and meta.json, streaming, replaced as a whole or not
// at all. Owns the output directory (a lock on it) while it runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "runtime/data/meta.hpp"

namespace spillway::data {

enum class TextTokenizer : std::uint8_t { bytes, chars };
enum class ExistingOutput : std::uint8_t { refuse, replace };

struct PrepareOptions {
  std::vector<std::filesystem::path> texts;  ///< regular files, concatenated in this order
  std::filesystem::path output;              ///< created when missing
  TextTokenizer tokenizer = TextTokenizer::chars;
  /// The last part of the text is held out: train.bin is the first floor(n * (1 - fraction))
  /// tokens of n. 0 writes no val.bin.
  double validation_fraction = 0.1;
  ExistingOutput existing = ExistingOutput::refuse;
};

struct PreparedData {
  Meta meta;
  std::uint64_t train_tokens = 0;
  std::uint64_t validation_tokens = 0;
};

/// Makes tokens of text. `bytes`: token = byte, vocabulary 256. `chars`: token = rank of the
/// Unicode code point among those of the texts, which must be UTF-8. Texts are read twice and never
/// held in memory. The files are written beside their final names, made durable and renamed,
/// meta.json last: a directory with a meta.json is complete. Throws `Error{invalid_argument}` when
/// the output exists and may not be replaced or a part would be empty, `Error{corrupt_data}` for
/// text that is not UTF-8, `Error{busy}` when another process prepares the same directory.
PreparedData prepare_tokens(const PrepareOptions& options);

}  // namespace spillway::data
