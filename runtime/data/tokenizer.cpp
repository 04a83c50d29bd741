#include "runtime/data/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/error.hpp"
#include "runtime/data/detail/utf8.hpp"

namespace spillway::data {
namespace {

using detail::Utf8Decoder;
using detail::Utf8Status;

constexpr std::string_view kHelper = "tools/python/spillway_tokenize.py";

[[noreturn]] void throw_not_utf8(std::uint64_t position) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the text is not valid UTF-8 at byte {}; convert it to UTF-8", position));
}

}  // namespace

Tokenizer::Tokenizer(const Meta& meta)
    : vocab_size_(meta.vocab_size), characters_(meta.characters) {
  if (!meta.tokenizer) {
    throw Error(ErrorCode::not_supported,
                "meta.json names no tokenizer, so text cannot be read or written; add "
                "\"tokenizer\": \"bytes\", \"chars\" or the directory of a tokenizer.json");
  }
  const bool bytes = *meta.tokenizer == kBytesTokenizer;
  if (!bytes && *meta.tokenizer != kCharsTokenizer) {
    throw Error(ErrorCode::not_supported,
                fmt::format("tokenizer \"{}\" is not built in (bytes and chars are); encode and "
                            "decode with {}",
                            *meta.tokenizer, kHelper));
  }
  if (bytes) characters_.clear();
  check(bytes || !characters_.empty(), ErrorCode::invalid_argument,
        "meta.json says tokenizer chars but has no `characters`; make it with `spillway data`");
}

std::int32_t Tokenizer::token_of(char32_t character, std::uint64_t position) const {
  const auto found = std::lower_bound(characters_.begin(), characters_.end(), character);
  if (found == characters_.end() || *found != character) {
    std::string shown;
    detail::append_utf8(shown, character);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("character '{}' (U+{:04X}) at byte {} is not in the vocabulary of {} "
                            "characters; leave it out or prepare the data with text that has it",
                            character < 0x20 ? "?" : shown, static_cast<std::uint32_t>(character),
                            position, characters_.size()));
  }
  return static_cast<std::int32_t>(found - characters_.begin());
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  if (characters_.empty()) {
    for (const char byte : text) tokens.push_back(static_cast<std::uint8_t>(byte));
    return tokens;
  }
  Utf8Decoder decoder;
  std::uint64_t start = 0;  // of the character being read
  for (std::uint64_t i = 0; i < text.size(); ++i) {
    if (decoder.at_boundary()) start = i;
    const Utf8Status status = decoder.feed(static_cast<std::uint8_t>(text[i]));
    if (status == Utf8Status::invalid) throw_not_utf8(i);
    if (status == Utf8Status::complete) tokens.push_back(token_of(decoder.character(), start));
  }
  if (!decoder.at_boundary()) throw_not_utf8(start);
  return tokens;
}

std::string Tokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  const std::size_t known = characters_.empty() ? 256 : characters_.size();
  for (const std::int32_t token : tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= known) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("token {} stands for no text: the tokenizer has {}", token, known));
    }
    if (characters_.empty()) {
      text.push_back(static_cast<char>(token));
    } else {
      detail::append_utf8(text, characters_[static_cast<std::size_t>(token)]);
    }
  }
  return text;
}

}  // namespace spillway::data
