// Tokenizer: text to token ids and back, for the two tokenizers that need no library: `bytes` and
// `chars`. Immutable; any thread. HF tokenizers: tools/python/spillway_tokenize.py.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/meta.hpp"

namespace spillway::data {

inline constexpr std::string_view kBytesTokenizer = "bytes";
inline constexpr std::string_view kCharsTokenizer = "chars";

class Tokenizer {
 public:
  /// Throws `Error{not_supported}` when `meta` names another tokenizer or none.
  explicit Tokenizer(const Meta& meta);

  [[nodiscard]] std::uint32_t vocab_size() const { return vocab_size_; }
  /// Throws `Error{invalid_argument}` naming the first character that the vocabulary lacks, or the
  /// byte at which `text` is not UTF-8 (chars).
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const;
  /// Throws `Error{invalid_argument}` naming a token that stands for no text. With `bytes` the
  /// result is whatever bytes the tokens are, not necessarily UTF-8.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens) const;

 private:
  [[nodiscard]] std::int32_t token_of(char32_t character, std::uint64_t position) const;

  std::uint32_t vocab_size_;
  std::u32string characters_;  ///< empty: bytes
};

}  // namespace spillway::data
