#include "runtime/data/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/data/detail/utf8.hpp"
#include "tests/data/scratch.hpp"

namespace spillway::data::tokenizer_test {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

const Meta kBytes{TokenType::uint16, 256, "bytes", {}};
const Meta kChars{TokenType::uint16, 4, "chars", {U' ', U'a', U'\u00e9', U'\U0001F600'}};

TEST(Tokenizer, BytesTakesAndGivesAnything) {
  const Tokenizer tokenizer(kBytes);
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every.push_back(static_cast<char>(byte));
  const std::vector<std::int32_t> tokens = tokenizer.encode(every);
  ASSERT_EQ(tokens.size(), 256U);
  EXPECT_EQ(tokens[255], 255);
  EXPECT_EQ(tokenizer.decode(tokens), every);
}

TEST(Tokenizer, CharsCountsCodePointsNotBytes) {
  const Tokenizer tokenizer(kChars);
  const std::string text = "a \u00e9\U0001F600a";
  EXPECT_THAT(tokenizer.encode(text), ElementsAre(1, 0, 2, 3, 1));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  EXPECT_TRUE(tokenizer.encode("").empty());
}

TEST(Tokenizer, NamesTheCharacterThatTheVocabularyLacks) {
  const Tokenizer tokenizer(kChars);
  const Error error = error_of([&] { static_cast<void>(tokenizer.encode("a\u00e9\u20ac")); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("character '\u20ac' (U+20AC) at byte 3"));
}

TEST(Tokenizer, CharsRefusesTextThatIsNotUtf8) {
  const Tokenizer tokenizer(kChars);
  EXPECT_THAT(error_of([&] { static_cast<void>(tokenizer.encode("aa\xff")); }).what(),
              HasSubstr("not valid UTF-8 at byte 2"));
  EXPECT_THAT(error_of([&] { static_cast<void>(tokenizer.encode("a\xc3")); }).what(),
              HasSubstr("not valid UTF-8 at byte 1"));
}

TEST(Tokenizer, RefusesTokensThatStandForNoText) {
  const std::vector<std::int32_t> negative{-1};
  const std::vector<std::int32_t> beyond_chars{4};
  const std::vector<std::int32_t> beyond_bytes{256};
  EXPECT_THROW(static_cast<void>(Tokenizer(kChars).decode(negative)), Error);
  EXPECT_THROW(static_cast<void>(Tokenizer(kChars).decode(beyond_chars)), Error);
  Meta padded = kBytes;
  padded.vocab_size = 512;
  EXPECT_THROW(static_cast<void>(Tokenizer(padded).decode(beyond_bytes)), Error);
}

TEST(Tokenizer, RefusesWhatItCannotRead) {
  Meta meta{TokenType::uint16, 50257, "/models/gpt2", {}};
  const Error other = error_of([&] { Tokenizer{meta}; });
  EXPECT_EQ(other.code(), ErrorCode::not_supported);
  EXPECT_THAT(other.what(), HasSubstr("spillway_tokenize.py"));
  meta.tokenizer.reset();
  EXPECT_EQ(error_of([&] { Tokenizer{meta}; }).code(), ErrorCode::not_supported);
  meta.tokenizer = "chars";  // the table is missing
  EXPECT_EQ(error_of([&] { Tokenizer{meta}; }).code(), ErrorCode::invalid_argument);
}

/// Code points of `text`, or nothing when it is not UTF-8.
std::optional<std::u32string> decode_utf8(std::string_view text) {
  detail::Utf8Decoder decoder;
  std::u32string characters;
  for (const char byte : text) {
    const detail::Utf8Status status = decoder.feed(static_cast<std::uint8_t>(byte));
    if (status == detail::Utf8Status::invalid) return std::nullopt;
    if (status == detail::Utf8Status::complete) characters.push_back(decoder.character());
  }
  return decoder.at_boundary() ? std::optional(characters) : std::nullopt;
}

TEST(Utf8, EveryCodePointComesBack) {
  for (char32_t character = 0; character < 0x110000; ++character) {
    if (character >= 0xd800 && character < 0xe000) continue;
    std::string text;
    detail::append_utf8(text, character);
    ASSERT_EQ(decode_utf8(text), std::u32string(1, character));
  }
}

TEST(Utf8, RefusesOverlongFormsSurrogatesAndStrayBytes) {
  for (const std::string_view text :
       {std::string_view("\x80"), std::string_view("\xbf"), std::string_view("\xc0\x80"),
        std::string_view("\xc1\xbf"), std::string_view("\xe0\x9f\xbf"),
        std::string_view("\xed\xa0\x80"), std::string_view("\xed\xbf\xbf"),
        std::string_view("\xf0\x8f\xbf\xbf"), std::string_view("\xf4\x90\x80\x80"),
        std::string_view("\xf5\x80\x80\x80"), std::string_view("\xff"), std::string_view("\xc3"),
        std::string_view("\xe2\x82"), std::string_view("\xf0\x9f\x98"),
        std::string_view("\xc3\x28"), std::string_view("\xe2\x28\xa1"),
        std::string_view("\xf0\x9f\x98\x28")}) {
    EXPECT_EQ(decode_utf8(text), std::nullopt) << testing::PrintToString(text);
  }
}

}  // namespace
}  // namespace spillway::data::tokenizer_test
