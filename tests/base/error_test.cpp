#include "runtime/base/error.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>

namespace spillway::error_test {
namespace {

TEST(Error, CarriesCodeNativeCodeMessageAndCallSite) {
  const auto line = SourceLocation::current().line() + 1;
  const Error error(ErrorCode::device_error, "the device broke", 77);
  EXPECT_EQ(error.code(), ErrorCode::device_error);
  EXPECT_EQ(error.native(), 77);
  EXPECT_STREQ(error.what(), "the device broke");
  EXPECT_EQ(error.where().line(), line);
  EXPECT_TRUE(std::string_view(error.where().file_name()).ends_with("error_test.cpp"));
}

TEST(Error, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::internal); ++code) {
    names.insert(name_of(static_cast<ErrorCode>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(ErrorCode::internal) + 1);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(Check, ThrowsOnlyWhenTheConditionFailsAndNamesItsCaller) {
  EXPECT_NO_THROW(check(true, ErrorCode::busy, "fine"));
  const auto line = SourceLocation::current().line() + 2;
  try {
    check(false, ErrorCode::busy, "held by another");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::busy);
    EXPECT_EQ(error.native(), 0);
    EXPECT_EQ(error.where().line(), line);
  }
}

TEST(ThrowErrno, SpellsOutTheSystemsReason) {
  try {
    throw_errno(ENOSPC, "write /x/y");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io_error);
    EXPECT_EQ(error.native(), ENOSPC);
    EXPECT_STREQ(error.what(), "write /x/y: No space left on device (errno 28)");
  }
}

TEST(AssertDeathTest, ABrokenInvariantAbortsWithItsExpressionAndPlace) {
  const int two = 2;
  SPILLWAY_ASSERT(two == 2);
  EXPECT_DEATH(SPILLWAY_ASSERT(two == 3), "broken invariant `two == 3` at .*error_test.cpp");
}

}  // namespace
}  // namespace spillway::error_test
