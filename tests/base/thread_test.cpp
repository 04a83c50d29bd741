#include "runtime/base/thread.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "runtime/base/error.hpp"
#include "tests/support/refused_threads.hpp"

namespace spillway::thread_test {
namespace {

TEST(StartThread, DoesTheWork) {
  bool done = false;
  start_thread("work", [&] { done = true; }).join();
  EXPECT_TRUE(done);
}

TEST(StartThread, NamesTheThreadThatCannotStart) {
  test_support::expect_without_threads([] {
    try {
      start_thread("compute", [] {}).join();
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.native(), EAGAIN);
      EXPECT_TRUE(message.starts_with(
          "cannot start thread \"compute\": Resource temporarily unavailable (errno 11); "))
          << message;
      return !testing::Test::HasFailure();
    }
    return false;
  });
}

}  // namespace
}  // namespace spillway::thread_test
