#include "nvme_swap/detail/swap_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::nvme_swap::detail {
namespace {

constexpr std::chrono::milliseconds kLockRetry{10};
constexpr int kOpenFlags = O_RDWR | O_NOFOLLOW | O_CLOEXEC;

struct stat status_of(int descriptor, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) throw_errno(errno, "fstat " + path.string());
  return status;
}

[[noreturn]] void throw_missing(const std::filesystem::path& path) {
  throw Error(
      ErrorCode::corrupt_data,
      fmt::format("{} is not there, and it holds state of the run; {}", path.string(), kLossRemedy),
      ENOENT);
}

}  // namespace

SwapFile::SwapFile(std::filesystem::path path, int descriptor, bool adopted)
    : path_(std::move(path)), descriptor_(descriptor), adopted_(adopted) {
  if (descriptor_ < 0) throw_errno(errno, "open " + path_.string());
}

SwapFile::SwapFile(SwapFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      adopted_(other.adopted_),
      remove_on_close_(other.remove_on_close_) {}

SwapFile::~SwapFile() {
  if (descriptor_ < 0) return;
  const bool ours = ::getpid() == process_;
  if (ours && remove_on_close_) {
    std::error_code failed;
    std::filesystem::remove(path_, failed);
    if (failed) log_error("{} could not be removed: {}", path_.string(), failed.message());
  }
  // Explicit, because a ring that held the file may drop its reference some milliseconds later, and
  // a process that was forked keeps its own.
  if (ours) ::flock(descriptor_, LOCK_UN);
  ::close(descriptor_);
}

SwapFile SwapFile::create_or_adopt(const std::filesystem::path& path,
                                   std::chrono::milliseconds patience) {
  for (;;) {
    int descriptor = ::open(path.c_str(), kOpenFlags | O_CREAT | O_EXCL, 0600);
    const bool exists = descriptor < 0 && errno == EEXIST;
    if (exists) descriptor = ::open(path.c_str(), kOpenFlags);
    if (exists && descriptor < 0 && errno == ENOENT) continue;
    SwapFile file(path, descriptor, exists);
    file.lock(patience);
    if (file.is_unlinked()) continue;
    file.check_ownership();
    file.set_remove_on_close(!exists);
    return file;
  }
}

SwapFile SwapFile::open_existing(const std::filesystem::path& path,
                                 std::chrono::milliseconds patience) {
  for (;;) {
    const int descriptor = ::open(path.c_str(), kOpenFlags);
    if (descriptor < 0 && (errno == ENOENT || errno == ENOTDIR)) throw_missing(path);
    SwapFile file(path, descriptor, /*adopted=*/true);
    file.lock(patience);
    if (file.is_unlinked()) continue;
    file.check_ownership();
    return file;
  }
}

SwapFile SwapFile::open_unlocked(const std::filesystem::path& path) {
  // A named pipe would wait for its writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0 && (errno == ENOENT || errno == ENOTDIR)) throw_missing(path);
  SwapFile file(path, descriptor, /*adopted=*/true);
  file.check_regular();
  return file;
}

void SwapFile::lock(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) throw_errno(errno, "lock " + path_.string());
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Error(ErrorCode::busy,
                  fmt::format("{} is locked by another process (tried for {} ms); wait for that "
                              "run to end or choose another directory",
                              path_.string(), patience.count()),
                  EWOULDBLOCK);
    }
    std::this_thread::sleep_for(kLockRetry);
  }
}

bool SwapFile::is_unlinked() const { return status_of(descriptor_, path_).st_nlink == 0; }

void SwapFile::check_regular() const {
  check(S_ISREG(status_of(descriptor_, path_).st_mode), ErrorCode::invalid_argument,
        path_.string() + " is not a regular file");
}

/// A file that others can reach may be changed under our feet.
void SwapFile::check_ownership() const {
  check_regular();
  const struct stat status = status_of(descriptor_, path_);
  check(status.st_uid == ::geteuid() && status.st_nlink == 1 && (status.st_mode & 077) == 0,
        ErrorCode::invalid_argument,
        fmt::format("{} must belong to this user alone (mode 0600, one name); its mode is {:o}, "
                    "its owner {}, its names {}",
                    path_.string(), status.st_mode & 07777U, status.st_uid, status.st_nlink));
}

std::uint64_t SwapFile::size() const {
  return static_cast<std::uint64_t>(status_of(descriptor_, path_).st_size);
}

void SwapFile::check_present(std::uint64_t bytes) const {
  const struct stat open = status_of(descriptor_, path_);
  struct stat named {};
  if (::lstat(path_.c_str(), &named) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) throw_errno(errno, "lstat " + path_.string());
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{} was removed while the run used it, so its state cannot be kept; {}",
                            path_.string(), kLossRemedy),
                ENOENT);
  }
  if (named.st_dev != open.st_dev || named.st_ino != open.st_ino) {
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{} was replaced by another file while the run used it, so its state "
                            "cannot be kept; {}",
                            path_.string(), kLossRemedy));
  }
  if (static_cast<std::uint64_t>(open.st_size) < bytes) {
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{} was cut to {} bytes of {} while the run used it; {}",
                            path_.string(), open.st_size, bytes, kLossRemedy));
  }
}

void SwapFile::truncate() {
  if (::ftruncate(descriptor_, 0) != 0) throw_errno(errno, "truncate " + path_.string());
  remove_on_close_ = true;
}

void SwapFile::preallocate(std::uint64_t bytes) {
  const auto length = static_cast<off_t>(bytes);
  int failed = 0;
  do {
    failed = ::fallocate(descriptor_, 0, 0, length) == 0 ? 0 : errno;
  } while (failed == EINTR);
  // Writes into every block where the filesystem has no call for it.
  if (failed == EOPNOTSUPP) failed = ::posix_fallocate(descriptor_, 0, length);
  if (failed == ENOSPC || failed == EDQUOT || failed == EFBIG) {
    throw Error(
        ErrorCode::does_not_fit,
        fmt::format("{} cannot be given {}: {} (errno {}); free space or choose another "
                    "directory",
                    path_.string(), format_bytes(Bytes{bytes}), std::strerror(failed), failed),
        failed);
  }
  if (failed != 0) throw_errno(failed, "preallocate " + path_.string());
}

bool SwapFile::use_direct_io() {
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags >= 0 && ::fcntl(descriptor_, F_SETFL, flags | O_DIRECT) == 0) return true;
  log_info("{} is used through the page cache: its filesystem refuses O_DIRECT ({})",
           path_.string(), std::strerror(errno));
  return false;
}

std::size_t SwapFile::read_at(std::uint64_t offset, std::span<std::byte> target) const {
  std::size_t done = 0;
  while (done < target.size()) {
    const ssize_t got = ::pread(descriptor_, target.data() + done, target.size() - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(errno, fmt::format("read {} at {}", path_.string(), offset + done));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

void check_free_space(std::span<const SwapFile> files, std::span<const std::uint64_t> file_bytes) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    const dev_t device = status_of(files[i].descriptor(), files[i].path()).st_dev;
    std::uint64_t needed = 0;
    for (std::size_t other = 0; other < files.size(); ++other) {
      if (status_of(files[other].descriptor(), files[other].path()).st_dev == device) {
        needed += file_bytes[other];
      }
    }
    struct statvfs space {};
    if (::fstatvfs(files[i].descriptor(), &space) != 0) {
      throw_errno(errno, "statvfs " + files[i].path().string());
    }
    const std::uint64_t available = std::uint64_t{space.f_bavail} * space.f_frsize;
    check(needed <= available, ErrorCode::does_not_fit,
          fmt::format("the tile store needs {} on the filesystem of {}, where {} are available; "
                      "free space or choose another directory",
                      format_bytes(Bytes{needed}), files[i].path().string(),
                      format_bytes(Bytes{available})));
  }
}

void flush_directory(const std::filesystem::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_errno(errno, "open " + directory.string());
  const int failed = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some filesystems have nothing to flush here and say EINVAL.
  if (failed != 0 && failed != EINVAL) throw_errno(failed, "fsync " + directory.string());
}

}  // namespace spillway::nvme_swap::detail
