#include "runtime/base/json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace spillway::json_test {
namespace {

using testing::HasSubstr;

Error error_of(const std::string& text, const JsonSource& source) {
  try {
    static_cast<void>(parse_json(text, source));
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << text << " was read";
  return {ErrorCode::internal, ""};
}

TEST(Json, WhatIsNotOneDocumentIsRefusedInTheWordsOfItsSource) {
  for (const char* const text :
       {"", "{", "nonsense", "{} {}", "{\"a\": 1e999}", "{,}", "\xff", "{\"\xff\": 1}"}) {
    const Error error = error_of(text, {.origin = "a.json", .code = ErrorCode::invalid_argument});
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << text;
    EXPECT_THAT(error.what(), HasSubstr("a.json: not JSON")) << text;
    EXPECT_TRUE(json_or_null(text).is_null()) << text;
  }
}

TEST(Json, AKeyThatStandsTwiceIsNamedWithItsPath) {
  EXPECT_THAT(error_of(R"({"a": {"b": 1, "c": 2, "b": 3}})", {.origin = "x"}).what(),
              HasSubstr("x: key a.b stands twice"));
  EXPECT_THAT(error_of("{\"a\\u001b[31m\": 1, \"a\\u001b[31m\": 2}", {}).what(),
              HasSubstr("key a\\u001b[31m stands twice"));
  EXPECT_EQ(parse_json(R"([{"a": 1}, {"a": 2}])", {}).size(), 2U);
}

TEST(Json, TheSourceSaysHowDeepADocumentMayNest) {
  const JsonSource two{.origin = "x", .most_levels = 2};
  EXPECT_EQ(parse_json("[{}]", two).size(), 1U);
  EXPECT_THAT(error_of("[[{}]]", two).what(), HasSubstr("nested deeper than 2 levels"));
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  EXPECT_THAT(error_of(deep, {}).what(), HasSubstr("nested deeper than 32 levels"));
}

TEST(Json, OrderIsAlphabeticalOrThatOfTheText) {
  EXPECT_EQ(parse_json(R"({"b": 1, "a": 2})", {}).dump(), R"({"a":2,"b":1})");
  EXPECT_EQ(parse_ordered_json(R"({"b": 1, "a": 2})", {}).dump(), R"({"b":1,"a":2})");
}

TEST(Json, MessagesStayShortAndKeepWholeCharacters) {
  const std::string letters(78, 'a');
  EXPECT_EQ(brief_name(letters + "\u00e9\u00e9"), "\"" + letters + "...");
  const std::string what = error_of("\"" + std::string(100000, 'a'), {.origin = "x"}).what();
  EXPECT_LT(what.size(), 400U);
}

}  // namespace
}  // namespace spillway::json_test
