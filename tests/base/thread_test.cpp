#include "runtime/base/thread.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

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
  constexpr int kPassed = 7;
  constexpr int kNoFilters = 8;
  const pid_t child = ::fork();
  if (child == 0) {
    if (!test_support::refuse_threads()) ::_exit(kNoFilters);
    try {
      start_thread("compute", [] {}).join();
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.native(), EAGAIN);
      EXPECT_TRUE(message.starts_with(
          "cannot start thread \"compute\": Resource temporarily unavailable (errno 11); "))
          << message;
      ::_exit(HasFailure() ? 1 : kPassed);
    }
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == kNoFilters) GTEST_SKIP() << "this kernel has no seccomp filters";
  EXPECT_EQ(WEXITSTATUS(status), kPassed);
}

}  // namespace
}  // namespace spillway::thread_test
