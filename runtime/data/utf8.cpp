#include "runtime/data/detail/utf8.hpp"

namespace spillway::data::detail {

Utf8Status Utf8Decoder::feed_lead(std::uint8_t byte) {
  low_ = 0x80;
  high_ = 0xbf;
  if (byte >= 0xc2 && byte <= 0xdf) {
    pending_ = 1;
    character_ = byte & 0x1fU;
  } else if (byte >= 0xe0 && byte <= 0xef) {
    pending_ = 2;
    character_ = byte & 0x0fU;
    if (byte == 0xe0) low_ = 0xa0;   // below: overlong
    if (byte == 0xed) high_ = 0x9f;  // above: surrogates
  } else if (byte >= 0xf0 && byte <= 0xf4) {
    pending_ = 3;
    character_ = byte & 0x07U;
    if (byte == 0xf0) low_ = 0x90;   // below: overlong
    if (byte == 0xf4) high_ = 0x8f;  // above U+10FFFF
  } else {
    return Utf8Status::invalid;
  }
  return Utf8Status::partial;
}

Utf8Status Utf8Decoder::feed_continuation(std::uint8_t byte) {
  if (byte < low_ || byte > high_) return Utf8Status::invalid;
  low_ = 0x80;
  high_ = 0xbf;
  character_ = (character_ << 6) | (byte & 0x3fU);
  --pending_;
  return pending_ == 0 ? Utf8Status::complete : Utf8Status::partial;
}

void append_utf8(std::string& text, char32_t character) {
  const auto continuation = [&](unsigned shift) {
    text.push_back(static_cast<char>(0x80U | ((character >> shift) & 0x3fU)));
  };
  if (character < 0x80) {
    text.push_back(static_cast<char>(character));
  } else if (character < 0x800) {
    text.push_back(static_cast<char>(0xc0U | (character >> 6)));
    continuation(0);
  } else if (character < 0x10000) {
    text.push_back(static_cast<char>(0xe0U | (character >> 12)));
    continuation(6);
    continuation(0);
  } else {
    text.push_back(static_cast<char>(0xf0U | (character >> 18)));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

}  // namespace spillway::data::detail
