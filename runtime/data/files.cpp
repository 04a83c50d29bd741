#include "runtime/data/detail/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::data::detail {

FileDescriptor::~FileDescriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void FileDescriptor::close(const std::filesystem::path& path) {
  const int descriptor = std::exchange(descriptor_, -1);
  if (descriptor >= 0 && ::close(descriptor) != 0) {
    throw_errno(errno, fmt::format("close {}", path.string()));
  }
}

FileDescriptor open_regular(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must report what it is, not wait for a writer.
  FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.get() < 0) throw_errno(errno, fmt::format("open {}", path.string()));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_errno(errno, fmt::format("stat {}", path.string()));
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is not a regular file; give a file on disk", path.string()));
  }
  return file;
}

std::uint64_t size_of_file(const FileDescriptor& file, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_errno(errno, fmt::format("stat {}", path.string()));
  return static_cast<std::uint64_t>(status.st_size);
}

std::size_t read_some(const FileDescriptor& file, std::span<std::byte> target,
                      const std::filesystem::path& path) {
  while (true) {
    const ::ssize_t count = ::read(file.get(), target.data(), target.size());
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno != EINTR) throw_errno(errno, fmt::format("read {}", path.string()));
  }
}

std::string read_text(const std::filesystem::path& path, std::uint64_t limit) {
  const FileDescriptor file = open_regular(path);
  const std::uint64_t size = size_of_file(file, path);
  if (size > limit) {
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{}: {} bytes, more than the {} that such a file may have",
                            path.string(), size, limit));
  }
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const auto rest = std::as_writable_bytes(std::span{text}).subspan(done);
    const std::size_t count = read_some(file, rest, path);
    if (count == 0) break;
    done += count;
  }
  text.resize(done);
  return text;
}

PartialFile::PartialFile(std::filesystem::path path)
    : path_(std::move(path)),
      partial_(path_.parent_path() / fmt::format(".{}.partial", path_.filename().string())) {
  // A leftover of a killed process has no owner: the directory is locked, or the caller's alone.
  ::unlink(partial_.c_str());
  file_ = FileDescriptor{
      ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666)};
  if (file_.get() < 0) throw_errno(errno, fmt::format("create {}", partial_.string()));
}

PartialFile::~PartialFile() {
  if (!published_ && ::unlink(partial_.c_str()) != 0) {
    log_warning("cannot remove {} (errno {}); remove it by hand", partial_.string(), errno);
  }
}

void PartialFile::write(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ::ssize_t count = ::write(file_.get(), data.data(), data.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno(errno, fmt::format("write {}", partial_.string()));
    data = data.subspan(static_cast<std::size_t>(count));
  }
}

void PartialFile::finish() {
  if (::fsync(file_.get()) != 0) throw_errno(errno, fmt::format("fsync {}", partial_.string()));
  file_.close(partial_);
}

void PartialFile::publish() {
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) {
    throw_errno(errno, fmt::format("rename {} to {}", partial_.string(), path_.string()));
  }
  published_ = true;
}

DirectoryLock::DirectoryLock(const std::filesystem::path& directory)
    : directory_(directory),
      descriptor_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_.get() < 0) throw_errno(errno, fmt::format("open {}", directory.string()));
  if (::flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) throw_errno(errno, fmt::format("lock {}", directory.string()));
    throw Error(ErrorCode::busy,
                fmt::format("{} is being written by another process; wait for it or choose "
                            "another output directory",
                            directory.string()),
                EWOULDBLOCK);
  }
}

void DirectoryLock::sync() {
  if (::fsync(descriptor_.get()) != 0) {
    throw_errno(errno, fmt::format("fsync {}", directory_.string()));
  }
}

}  // namespace spillway::data::detail
