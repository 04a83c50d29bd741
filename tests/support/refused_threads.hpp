// refuse_threads: what a process meets that may have no more threads.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

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

}  // namespace spillway::test_support
