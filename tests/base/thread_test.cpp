#include "runtime/base/thread.hpp"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>

#include "runtime/base/error.hpp"

namespace spillway::thread_test {
namespace {

TEST(StartThread, DoesTheWork) {
  bool done = false;
  start_thread("work", [&] { done = true; }).join();
  EXPECT_TRUE(done);
}

/// From here on this process starts no thread; there is no way back.
bool refuse_threads() {
  std::array<sock_filter, 5> program{{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 1, 0, SYS_clone3},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_clone},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EAGAIN},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(StartThread, NamesTheThreadThatCannotStart) {
  constexpr int kPassed = 7;
  constexpr int kNoFilters = 8;
  const pid_t child = ::fork();
  if (child == 0) {
    if (!refuse_threads()) ::_exit(kNoFilters);
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
