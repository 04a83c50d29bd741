#include "runtime/base/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;

/// A directory that others have made, and take away again between two looks at it, is made anew so
/// often. A link that leads nowhere looks the same.
constexpr int kMostTimesGone = 100;

[[noreturn]] void fail(int error_number, std::string_view operation, const fs::path& path) {
  throw_errno(error_number, fmt::format("{} {}", operation, path.string()));
}

fs::path directory_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// What a file is that is not a regular one.
std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

void synchronize(const FileDescriptor& file, const fs::path& path) {
  if (::fsync(file.get()) != 0) fail(errno, "fsync", path);
}

void write_all(const FileDescriptor& file, std::span<const std::byte> content,
               const fs::path& path) {
  while (!content.empty()) {
    const ssize_t written = ::write(file.get(), content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno, "write", path);
    content = content.subspan(static_cast<std::size_t>(written));
  }
}

}  // namespace

void FileDescriptor::close() noexcept {
  if (descriptor_ < 0) return;
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) {
    log_error("close: {}", std::strerror(errno));
  }
}

LockedFile& LockedFile::operator=(LockedFile&& other) noexcept {
  if (this != &other) {
    unlock();
    file_ = std::move(other.file_);
    holder_ = other.holder_;
  }
  return *this;
}

bool LockedFile::try_lock(const fs::path& path) {
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return false;
    fail(errno, "lock", path);
  }
  holder_ = ::getpid();
  return true;
}

void LockedFile::unlock() noexcept {
  if (file_.is_open() && holder_ == ::getpid()) ::flock(file_.get(), LOCK_UN);
}

FileDescriptor open_file(const fs::path& path, int flags, unsigned mode) {
  FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC, mode));
  if (!file.is_open()) fail(errno, "open", path);
  return file;
}

FileDescriptor open_regular_file(const fs::path& path) {
  // O_NONBLOCK: opening a pipe must report what it is, not wait for a writer.
  FileDescriptor file = open_file(path, O_RDONLY | O_NONBLOCK);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(errno, "stat", path);
  check(S_ISREG(status.st_mode), ErrorCode::invalid_argument,
        fmt::format("{} is {}; give a regular file", path.string(), kind_of(status.st_mode)));
  return file;
}

bool is_there(const fs::path& path) {
  if (::access(path.c_str(), F_OK) == 0) return true;
  if (errno != ENOENT && errno != ENOTDIR) fail(errno, "access", path);
  return false;
}

bool leads_to(const fs::path& path, int descriptor) {
  struct stat held {};
  struct stat named {};
  if (::fstat(descriptor, &held) != 0) fail(errno, "stat", path);
  if (::lstat(path.c_str(), &named) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) fail(errno, "stat", path);
    return false;
  }
  return held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

std::string read_text_file(const fs::path& path, Bytes limit) {
  const FileDescriptor file = open_regular_file(path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(errno, "stat", path);
  const auto refuse = [&](std::uint64_t size) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has at least {} bytes; at most {} are expected here", path.string(),
                            size, limit.value()));
  };
  const auto stated = static_cast<std::uint64_t>(status.st_size);
  if (stated > limit.value()) refuse(stated);
  std::string text;
  std::size_t filled = 0;
  for (;;) {
    // One byte more than stated, so that the end is found without growing.
    if (filled == text.size()) {
      text.resize(std::max({static_cast<std::size_t>(stated) + 1, 2 * filled, std::size_t{4096}}));
    }
    const ssize_t got = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(errno, "read", path);
    filled += static_cast<std::size_t>(got);
    if (filled > limit.value()) refuse(filled);
    if (got == 0) break;
  }
  text.resize(filled);
  return text;
}

void synchronize_directory(const fs::path& directory) {
  synchronize(open_file(directory, O_RDONLY | O_DIRECTORY), directory);
}

AtomicFile::AtomicFile(fs::path target) : target_(std::move(target)) {
  // A crashed process may have left a file, and its number may have come round again.
  for (int attempt = 0; !file_.is_open(); ++attempt) {
    path_ = directory_of(target_) /
            fmt::format(".{}.{}.{}.tmp", target_.filename().string(), ::getpid(), attempt);
    const int descriptor =
        ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor < 0 && (errno != EEXIST || attempt == 1000)) fail(errno, "create", path_);
    file_ = FileDescriptor(descriptor);
  }
}

AtomicFile::~AtomicFile() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

void AtomicFile::write(std::span<const std::byte> content) { write_all(file_, content, path_); }

void AtomicFile::replace() {
  synchronize(file_, path_);
  if (std::rename(path_.c_str(), target_.c_str()) != 0) fail(errno, "rename to", target_);
  path_.clear();
  synchronize_directory(directory_of(target_));
}

void write_file_atomically(const fs::path& path, std::span<const std::byte> content) {
  AtomicFile file(path);
  file.write(content);
  file.replace();
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  write_file_atomically(path, std::as_bytes(std::span(content.data(), content.size())));
}

void MadeDirectories::make(const fs::path& directory) {
  for (int gone = 0;; ++gone) {
    const fs::file_type found = fs::status(directory).type();
    if (found == fs::file_type::directory || make_new(directory)) return;
    if (found != fs::file_type::not_found || gone == kMostTimesGone) {
      fail(EEXIST, "create directory", directory);
    }
  }
}

bool MadeDirectories::make_new(const fs::path& directory) {
  const fs::path path = directory.has_filename() ? directory : directory.parent_path();
  const fs::path parent = directory_of(path);
  for (int gone = 0;; ++gone) {
    make(parent);
    if (::mkdir(path.c_str(), 0777) == 0) break;
    if (errno == EEXIST) return false;
    if (errno != ENOENT || gone == kMostTimesGone) fail(errno, "create directory", path);
  }
  made_.push_back(path);
  synchronize_directory(parent);
  return true;
}

void MadeDirectories::share(const fs::path& directory, std::uint64_t count) {
  fs::path path = directory;
  for (std::uint64_t i = 0; i < count; ++i, path = path.parent_path()) {
    made_.insert(made_.begin(), path);
  }
}

MadeDirectories::~MadeDirectories() {
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) {
    if (::rmdir(path->c_str()) == 0 || errno == ENOENT) continue;
    if (errno == ENOTEMPTY || errno == EEXIST) return;
    log_warning("remove {}: {}", path->string(), std::strerror(errno));
  }
}

}  // namespace spillway
