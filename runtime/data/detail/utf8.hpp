// UTF-8, strict: no overlong forms, no surrogates, nothing above U+10FFFF. Incremental, so that a
// character may cross the border of two chunks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spillway::data::detail {

enum class Utf8Status : std::uint8_t { complete, partial, invalid };

class Utf8Decoder {
 public:
  /// Takes one byte. `complete`: `character()` is the code point that it ends. After `invalid` the
  /// decoder is of no further use.
  Utf8Status feed(std::uint8_t byte) {
    if (pending_ == 0 && byte < 0x80) {
      character_ = byte;
      return Utf8Status::complete;
    }
    return pending_ == 0 ? feed_lead(byte) : feed_continuation(byte);
  }

  [[nodiscard]] char32_t character() const { return character_; }
  /// Whether the text may end here.
  [[nodiscard]] bool at_boundary() const { return pending_ == 0; }

 private:
  Utf8Status feed_lead(std::uint8_t byte);
  Utf8Status feed_continuation(std::uint8_t byte);

  char32_t character_ = 0;
  std::uint8_t pending_ = 0;  ///< continuation bytes still due
  std::uint8_t low_ = 0x80;   ///< bounds of the next one: they exclude overlong forms,
  std::uint8_t high_ = 0xbf;  ///< surrogates and what lies above U+10FFFF
};

/// Appends `character`, a Unicode scalar value.
void append_utf8(std::string& text, char32_t character);

}  // namespace spillway::data::detail
