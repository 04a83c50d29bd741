// What a process does that may have no more threads.
#pragma once

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

namespace spillway::test_support {

/// Lets this process start no thread from here on; there is no way back. Returns false if the
/// kernel has no filters for that.
inline bool refuse_threads() {
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

/// Expects that `passes()` is true in a child that may start no thread. Skips the test where the
/// kernel has no filters.
template <class Passes>
void expect_without_threads(const Passes& passes) {
  constexpr int kPassed = 7;
  constexpr int kNoFilters = 8;
  const pid_t child = ::fork();
  if (child == 0) {
    if (!refuse_threads()) ::_exit(kNoFilters);
    try {
      ::_exit(passes() ? kPassed : 1);
    } catch (...) {
      ::_exit(1);
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == kNoFilters) GTEST_SKIP() << "this kernel has no seccomp filters";
  EXPECT_EQ(WEXITSTATUS(status), kPassed);
}

}  // namespace spillway::test_support
