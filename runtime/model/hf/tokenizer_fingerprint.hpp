// What tells two HF tokenizers apart, however their files are written. Versions of the library
// write one tokenizer in several ways. tools/python/spillway_tokenize.py makes the same
// fingerprints.
//
// Threads: a function without state; any thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace spillway::model {

/// Has two numbers of eight hexadecimal digits; both are equal where text becomes the same tokens.
struct TokenizerFingerprint {
  /// CRC-32 of "ID TOKEN" lines in order of id, then of merges' lines, joined by line feeds.
  std::string tokens;
  /// CRC-32 of what else determines how text becomes tokens: of the array of `normalizer`,
  /// `pre_tokenizer`, `added_tokens` in order of id, `model` without `vocab` and `merges`, and the
  /// scores of a vocabulary that is a list. The array is written as a text: true as "t"; a number
  /// as "n" and the 16 hexadecimal digits of its fp64; a string as its length in bytes, ":" and its
  /// bytes; an array as its values between brackets; an object as its keys, in order, each with its
  /// value, between braces. Members that are null, false or empty are left out, and false and null
  /// elsewhere are "-". Where versions of the library write one thing in two ways, it has one form
  /// here: ByteLevel always has `use_regex` and never `trim_offsets`, Metaspace has
  /// `prepend_scheme` and `split` in place of `add_prefix_space` and `str_rep`, and a model with
  /// merges is of type BPE.
  std::string rules;

  bool operator==(const TokenizerFingerprint&) const = default;
};

/// Reads `path`, a tokenizer.json or a directory with one; returns nothing where there is none.
/// Throws `Error{corrupt_data}` if it is no tokenizer.
[[nodiscard]] std::optional<TokenizerFingerprint> tokenizer_fingerprint(
    const std::filesystem::path& path);

}  // namespace spillway::model
