// meta.json: what the token files beside it hold. A value type with its reader and writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace spillway::data {

enum class TokenType : std::uint8_t { uint16, uint32 };

[[nodiscard]] std::string_view name_of(TokenType type);
[[nodiscard]] constexpr std::size_t size_of(TokenType type) {
  return type == TokenType::uint16 ? 2 : 4;
}

/// Vocabularies stay below 2^31, so that a token id is never negative as an int32.
inline constexpr std::uint32_t kMaxVocabulary = 0x7fffffffU;

/// `meta.json` beside the token files.
struct Meta {
  TokenType dtype = TokenType::uint16;
  std::uint32_t vocab_size = 0;
  std::optional<std::string> tokenizer;  ///< "bytes", "chars" or a path; see tokenizer.hpp
  /// For `chars`, the code point of each token id, strictly ascending; else empty. In the file it
  /// is one string, `characters`.
  std::u32string characters;
  /// For a tokenizer with a path, both parts of what runtime/model/hf/tokenizer_fingerprint.hpp
  /// defines.
  std::optional<std::string> tokenizer_crc32{};
  std::optional<std::string> tokenizer_rules_crc32{};

  bool operator==(const Meta&) const = default;
};

/// Returns the narrowest type that holds every id of a vocabulary.
[[nodiscard]] constexpr TokenType token_type_for(std::uint32_t vocab_size) {
  return vocab_size <= 65536 ? TokenType::uint16 : TokenType::uint32;
}

/// Reads the text of a meta.json; `origin` names it in errors. Keys other than `dtype`,
/// `vocab_size`, `tokenizer`, `tokenizer_crc32`, `tokenizer_rules_crc32` and `characters` are left
/// to whoever wrote them.
/// Throws `Error{corrupt_data}` naming the key when the fields are missing or contradict each
/// other.
[[nodiscard]] Meta parse_meta(std::string_view json_text, std::string_view origin);
[[nodiscard]] Meta load_meta(const std::filesystem::path& meta_json);
/// Returns the text that `parse_meta` reads back equal.
[[nodiscard]] std::string to_meta_json(const Meta& meta);
/// Replaces `meta_json` atomically.
void save_meta(const Meta& meta, const std::filesystem::path& meta_json);

}  // namespace spillway::data
