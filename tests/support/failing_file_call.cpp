#include "tests/support/failing_file_call.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>

namespace spillway::test_support {
constinit FailingTurn file_call_turn;
}  // namespace spillway::test_support

namespace {

bool fails_now() {
  if (!spillway::test_support::file_call_turn.comes()) return false;
  errno = EIO;
  return true;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// What the linker prefers to the C library's.
#define SPILLWAY_FAILING(result, name, parameters, arguments, ...) \
  extern "C" result name parameters __VA_ARGS__ {                  \
    static auto* const real = next<result parameters>(#name);      \
    return fails_now() ? static_cast<result>(-1) : real arguments; \
  }

SPILLWAY_FAILING(ssize_t, pread, (int file, void* data, size_t size, off_t at),
                 (file, data, size, at))
SPILLWAY_FAILING(ssize_t, pwrite, (int file, const void* data, size_t size, off_t at),
                 (file, data, size, at))
SPILLWAY_FAILING(ssize_t, read, (int file, void* data, size_t size), (file, data, size))
SPILLWAY_FAILING(ssize_t, write, (int file, const void* data, size_t size), (file, data, size))
SPILLWAY_FAILING(int, fsync, (int file), (file))
SPILLWAY_FAILING(int, fdatasync, (int file), (file))
SPILLWAY_FAILING(int, fallocate, (int file, int mode, off_t at, off_t size), (file, mode, at, size))
SPILLWAY_FAILING(int, ftruncate, (int file, off_t size), (file, size), noexcept)
SPILLWAY_FAILING(int, mkdir, (const char* path, mode_t mode), (path, mode), noexcept)
SPILLWAY_FAILING(int, rename, (const char* from, const char* to), (from, to), noexcept)
SPILLWAY_FAILING(int, renameat2,
                 (int from_folder, const char* from, int to_folder, const char* to, unsigned flags),
                 (from_folder, from, to_folder, to, flags), noexcept)
SPILLWAY_FAILING(int, link, (const char* from, const char* to), (from, to), noexcept)
SPILLWAY_FAILING(int, unlink, (const char* path), (path), noexcept)
SPILLWAY_FAILING(int, unlinkat, (int folder, const char* path, int flags), (folder, path, flags),
                 noexcept)
SPILLWAY_FAILING(int, rmdir, (const char* path), (path), noexcept)
SPILLWAY_FAILING(int, flock, (int file, int operation), (file, operation), noexcept)
SPILLWAY_FAILING(int, fstat, (int file, struct stat* found), (file, found), noexcept)
SPILLWAY_FAILING(int, statvfs, (const char* path, struct statvfs* found), (path, found), noexcept)

extern "C" int openat(int folder, const char* path, int flags, ...) {
  static auto* const real = next<int(int, const char*, int, ...)>("openat");
  std::va_list arguments;
  va_start(arguments, flags);
  const auto mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return fails_now() ? -1 : real(folder, path, flags, mode);
}

extern "C" int open64(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const auto mode = va_arg(arguments, mode_t);
  va_end(arguments);
  return ::openat(AT_FDCWD, path, flags, mode);
}

extern "C" int posix_fallocate64(int file, off64_t at, off64_t size) {
  static auto* const real = next<int(int, off64_t, off64_t)>("posix_fallocate64");
  return fails_now() ? EIO : real(file, at, size);
}
