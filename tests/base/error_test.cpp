#include "runtime/base/error.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <exception>
#include <filesystem>
#include <new>
#include <set>
#include <stdexcept>
#include <system_error>

#include "runtime/base/as_error.hpp"

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

/// Returns what a call of the standard library throws, as ours.
template <class Function>
Error thrown_by(Function function) {
  try {
    function();
  } catch (const std::exception& exception) {
    return as_error(exception);
  }
  return {ErrorCode::internal, "nothing was thrown"};
}

TEST(Error, NamesOperationPathAndErrnoOfAFileOperation) {
  namespace fs = std::filesystem;
  const Error made = thrown_by([] { fs::create_directory("/proc/self/none/there"); });
  EXPECT_EQ(made.code(), ErrorCode::io_error);
  EXPECT_EQ(made.native(), ENOENT);
  EXPECT_STREQ(
      made.what(),
      "cannot create directory /proc/self/none/there: No such file or directory (errno 2)");
  const Error renamed = thrown_by([] { fs::rename("/proc/self/none", "/proc/self/one"); });
  EXPECT_STREQ(renamed.what(),
               "cannot rename /proc/self/none to /proc/self/one: No such file or directory "
               "(errno 2)");
}

TEST(Error, TellsTheRestOfTheStandardLibrarysApart) {
  EXPECT_EQ(thrown_by([] { throw std::bad_alloc(); }).code(), ErrorCode::out_of_memory);
  const Error system =
      thrown_by([] { throw std::system_error(EPERM, std::generic_category(), "a thread"); });
  EXPECT_EQ(system.code(), ErrorCode::io_error);
  EXPECT_EQ(system.native(), EPERM);
  const Error other = thrown_by([] { throw std::out_of_range("beyond"); });
  EXPECT_EQ(other.code(), ErrorCode::internal);
  EXPECT_STREQ(other.what(), "beyond");
  const Error ours = thrown_by([] { throw Error(ErrorCode::busy, "held", 5); });
  EXPECT_EQ(ours.code(), ErrorCode::busy);
  EXPECT_EQ(ours.native(), 5);
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
