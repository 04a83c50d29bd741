// What a child that this process forks finds where it has memory.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <span>

namespace spillway::test_support {

/// Returns how many of the two ends of `memory` a forked child can read. The kernel reads them for
/// it: a byte that is not there is no signal.
inline int ends_in_child(std::span<const std::byte> memory) {
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) ADD_FAILURE() << "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    int found = 0;
    for (const std::byte* const end : {&memory.front(), &memory.back()}) {
      found += ::write(pipe[1], end, 1) == 1 ? 1 : 0;
    }
    ::_exit(found);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  for (const int end : pipe) ::close(end);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  return WEXITSTATUS(status);
}

}  // namespace spillway::test_support
