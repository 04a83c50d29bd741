#include "runtime/base/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace spillway::log_test {
namespace {

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { set_log_level(LogLevel::warning); }

  static std::string all_levels() {
    ::testing::internal::CaptureStderr();
    log_debug("d{}", 1);
    log_info("i{}", 2);
    log_warning("w{}", 3);
    log_error("e{}", 4);
    return ::testing::internal::GetCapturedStderr();
  }
  static bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
};

TEST_F(LogTest, ShowsWarningsAndErrorsUnlessAsked) {
  const std::string text = all_levels();
  EXPECT_FALSE(has(text, "d1") || has(text, "i2")) << text;
  EXPECT_TRUE(has(text, "w3") && has(text, "e4")) << text;
}

// On a terminal the level has a colour.
TEST_F(LogTest, BeginsALineWithTheTimeAndTheLevel) {
  ::testing::internal::CaptureStderr();
  log_line(LogLevel::error, "text");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::MatchesRegex("[0-9]+:[0-9]+:[0-9]+\\.[0-9]+ .*error.* text\n"));
}

TEST_F(LogTest, FollowsTheLevel) {
  set_log_level(LogLevel::debug);
  EXPECT_TRUE(log_enabled(LogLevel::debug));
  const std::string all = all_levels();
  EXPECT_TRUE(has(all, "d1") && has(all, "i2") && has(all, "w3") && has(all, "e4")) << all;
  set_log_level(LogLevel::error);
  EXPECT_FALSE(log_enabled(LogLevel::warning));
  const std::string errors = all_levels();
  EXPECT_TRUE(!has(errors, "w3") && has(errors, "e4")) << errors;
  set_log_level(LogLevel::off);
  EXPECT_EQ(all_levels(), "");
}

TEST_F(LogTest, WritesTextWithBracesAsItIs) {
  ::testing::internal::CaptureStderr();
  log_line(LogLevel::error, "{not} a {format} %s");
  EXPECT_TRUE(has(::testing::internal::GetCapturedStderr(), "{not} a {format} %s"));
}

}  // namespace
}  // namespace spillway::log_test
