#include "runtime/data/token_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/data/scratch.hpp"

namespace spillway::data::token_file_test {
namespace {

using test::error_of;
using test::packed;
using test::Scratch;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::uint32_t kAnything = kMaxVocabulary;

TEST(TokenFile, ReadsBothTypes) {
  const Scratch scratch;
  const TokenFile narrow(scratch.write("a", packed<std::uint16_t>({1, 65535, 3, 4})),
                         TokenType::uint16);
  const TokenFile wide(scratch.write("b", packed<std::uint32_t>({1, 70000, 0x7ffffffe})),
                       TokenType::uint32);
  std::array<std::int32_t, 3> tokens{};
  EXPECT_EQ(narrow.size(), 4U);
  narrow.read(1, tokens, 65536);
  EXPECT_THAT(tokens, ElementsAre(65535, 3, 4));
  EXPECT_EQ(wide.size(), 3U);
  wide.read(0, tokens, kAnything);
  EXPECT_THAT(tokens, ElementsAre(1, 70000, 0x7ffffffe));
}

TEST(TokenFile, RefusesFilesThatCannotHoldTokens) {
  const Scratch scratch;
  const Error empty = error_of([&] { TokenFile(scratch.write("empty", ""), TokenType::uint16); });
  EXPECT_EQ(empty.code(), ErrorCode::corrupt_data);
  EXPECT_THAT(empty.what(), HasSubstr("is empty"));
  const Error odd = error_of([&] { TokenFile(scratch.write("odd", "abc"), TokenType::uint16); });
  EXPECT_EQ(odd.code(), ErrorCode::corrupt_data);
  EXPECT_THAT(odd.what(), HasSubstr("3 bytes are not a whole number of uint16 tokens"));
  for (const char* const size : {"a", "ab", "abc", "abcde", "abcdef", "abcdefg"}) {
    EXPECT_EQ(error_of([&] { TokenFile(scratch.write("x", size), TokenType::uint32); }).code(),
              ErrorCode::corrupt_data);
  }
}

TEST(TokenFile, RefusesWhatIsNotAFileOnDisk) {
  const Scratch scratch;
  const Error missing = error_of([&] { TokenFile(scratch / "none", TokenType::uint16); });
  EXPECT_EQ(missing.code(), ErrorCode::io_error);
  EXPECT_EQ(missing.native(), ENOENT);
  EXPECT_THAT(missing.what(), HasSubstr((scratch / "none").string()));
  EXPECT_EQ(error_of([&] { TokenFile(scratch / "", TokenType::uint16); }).code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([] { TokenFile("/dev/zero", TokenType::uint16); }).code(),
            ErrorCode::invalid_argument);
}

TEST(TokenFile, NamesTheTokenOutsideTheVocabulary) {
  const Scratch scratch;
  const TokenFile file(scratch.write("t", packed<std::uint16_t>({1, 2, 65, 66, 700})),
                       TokenType::uint16);
  std::array<std::int32_t, 3> tokens{};
  file.read(0, tokens, 66);
  const Error error = error_of([&] { file.read(1, tokens, 66); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
  EXPECT_THAT(error.what(),
              HasSubstr("token 66 at position 3 is not below the vocabulary size 66"));
  EXPECT_THAT(error.what(), HasSubstr((scratch / "t").string()));
}

TEST(TokenFile, RefusesIdsThatAreNegativeAsInt32) {
  const Scratch scratch;
  const TokenFile file(scratch.write("t", packed<std::uint32_t>({0x80000000U})), TokenType::uint32);
  std::array<std::int32_t, 1> token{};
  EXPECT_EQ(error_of([&] { file.read(0, token, 0xffffffffU); }).code(), ErrorCode::corrupt_data);
}

TEST(TokenFile, RefusesToReadBeyondTheEnd) {
  const Scratch scratch;
  const TokenFile file(scratch.write("t", packed<std::uint16_t>({1, 2, 3})), TokenType::uint16);
  std::array<std::int32_t, 2> tokens{};
  file.read(1, tokens, kAnything);
  file.read(3, {}, kAnything);
  for (const std::uint64_t first : {std::uint64_t{2}, std::uint64_t{3}, ~std::uint64_t{0}}) {
    const Error error = error_of([&] { file.read(first, tokens, kAnything); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << first;
  }
  std::array<std::int32_t, 4> more{};
  EXPECT_EQ(error_of([&] { file.read(0, more, kAnything); }).code(), ErrorCode::invalid_argument);
}

TEST(TokenFile, ReportsAFileThatShrankInsteadOfDying) {
  const Scratch scratch;
  const std::filesystem::path path = scratch.write("t", std::string(64 << 10, '\1'));
  const TokenFile file(path, TokenType::uint16);
  std::filesystem::resize_file(path, 2);
  std::array<std::int32_t, 2> tokens{};
  const Error error = error_of([&] { file.read(20000, tokens, kAnything); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
  EXPECT_THAT(error.what(), HasSubstr("2 bytes now, 65536 when it was opened"));
}

TEST(TokenFile, SurvivesAMove) {
  const Scratch scratch;
  TokenFile first(scratch.write("t", packed<std::uint16_t>({8, 9})), TokenType::uint16);
  const TokenFile second(std::move(first));
  std::array<std::int32_t, 2> tokens{};
  second.read(0, tokens, 10);
  EXPECT_THAT(tokens, ElementsAre(8, 9));
}

}  // namespace
}  // namespace spillway::data::token_file_test
