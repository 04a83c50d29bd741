#include "runtime/data/meta.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/data/scratch.hpp"

namespace spillway::data::meta_test {
namespace {

using test::error_of;
using test::Scratch;
using testing::HasSubstr;

TEST(Meta, ReadsWhatNanoGptUsersWrite) {
  const Meta meta = parse_meta(R"({"vocab_size": 50257, "dtype": "uint16", "made_by": "me"})", "m");
  EXPECT_EQ(meta.dtype, TokenType::uint16);
  EXPECT_EQ(meta.vocab_size, 50257U);
  EXPECT_EQ(meta.tokenizer, std::nullopt);
}

TEST(Meta, ComesBackEqual) {
  const Scratch scratch;
  Meta chars{TokenType::uint16, 5, "chars", {U'\0', U'\n', U'"', U'\u00e9', U'\U0001F600'}};
  const Meta bytes{TokenType::uint32, 300, "bytes", {}};
  const Meta hugging_face{TokenType::uint32, 151936,    "/models/\u00e9 qwen", {},
                          "0123abcd",        "89ef4567"};
  const Meta bare{TokenType::uint16, 1, std::nullopt, {}};
  const Meta largest{TokenType::uint32, 2147483647, std::nullopt, {}};
  for (const Meta& meta : {chars, bytes, hugging_face, bare, largest}) {
    EXPECT_EQ(parse_meta(to_meta_json(meta), "m"), meta);
    save_meta(meta, scratch / "meta.json");
    EXPECT_EQ(load_meta(scratch / "meta.json"), meta);
  }
}

TEST(Meta, NamesWhatIsWrong) {
  const struct {
    const char* text;
    const char* expected;
  } cases[] = {
      {"", "not JSON"},
      {"{\"dtype\": \"uint16\", \"vocab_size\": 65", "not JSON"},
      {"[1]", "not a JSON object"},
      {R"({"vocab_size": 5})", "`dtype` is missing"},
      {R"({"dtype": "int16", "vocab_size": 5})", "`dtype` is \"int16\""},
      {R"({"dtype": 16, "vocab_size": 5})", "`dtype` is 16"},
      {R"({"dtype": "uint16"})", "`vocab_size` is missing"},
      {R"({"dtype": "uint16", "vocab_size": 0})", "`vocab_size` is 0"},
      {R"({"dtype": "uint16", "vocab_size": -1})", "`vocab_size` is -1"},
      {R"({"dtype": "uint16", "vocab_size": 5.5})", "`vocab_size` is 5.5"},
      {R"({"dtype": "uint32", "vocab_size": 2147483648})", "`vocab_size` is 2147483648"},
      {R"({"dtype": "uint16", "vocab_size": 65537})", "65537 does not fit `dtype` uint16"},
      {R"({"dtype": "uint16", "vocab_size": 9, "tokenizer": 1})", "`tokenizer` is not a string"},
      {R"({"dtype": "uint16", "vocab_size": 9, "tokenizer": "bytes"})", "bytes has 256 tokens"},
      {R"({"dtype": "uint16", "vocab_size": 2, "tokenizer": "chars", "characters": "ba"})",
       "not strictly ascending at position 1"},
      {R"({"dtype": "uint16", "vocab_size": 2, "tokenizer": "chars", "characters": "aa"})",
       "not strictly ascending"},
      {R"({"dtype": "uint16", "vocab_size": 3, "tokenizer": "chars", "characters": "ab"})",
       "holds 2 characters, but `vocab_size` is 3"},
      {R"({"dtype": "uint16", "vocab_size": 2, "characters": "ab"})", "`tokenizer` is absent"},
      {R"({"dtype": "uint16", "vocab_size": 2, "characters": 7})", "not a string"},
  };
  for (const auto& each : cases) {
    const Error error = error_of([&] { static_cast<void>(parse_meta(each.text, "here.json")); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << each.text;
    EXPECT_THAT(error.what(), HasSubstr(each.expected));
    EXPECT_THAT(error.what(), HasSubstr("here.json"));
  }
}

TEST(Meta, SaysHowToMakeTheFileThatIsMissing) {
  const Error error = error_of([] { static_cast<void>(load_meta("/nowhere/meta.json")); });
  EXPECT_EQ(error.code(), ErrorCode::io_error);
  EXPECT_THAT(error.what(), HasSubstr("/nowhere/meta.json does not exist"));
  EXPECT_THAT(error.what(), HasSubstr("spillway data"));
}

TEST(Meta, DoesNotTakeAFileThatCannotBeLookedAtForMissing) {
  const Scratch scratch;
  const auto path = scratch / "meta.json";
  std::filesystem::create_symlink(path, path);
  EXPECT_EQ(error_of([&] { static_cast<void>(load_meta(path)); }).native(), ELOOP);
}

TEST(Meta, RefusesAPathThatJsonCannotHold) {
  const Meta meta{TokenType::uint16, 5, "/models/\xff", {}};
  EXPECT_EQ(error_of([&] { static_cast<void>(to_meta_json(meta)); }).code(),
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace spillway::data::meta_test
