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

PartialFile::PartialFile(std::filesystem::path path)
    : path_(std::move(path)),
      partial_(path_.parent_path() / fmt::format(".{}.partial", path_.filename().string())) {
  ::unlink(partial_.c_str());  // a leftover of a killed process: the lock says that it has no owner
  file_ = open_file(partial_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
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
  file_.close();
}

void PartialFile::publish() {
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) {
    throw_errno(errno, fmt::format("rename {} to {}", partial_.string(), path_.string()));
  }
  published_ = true;
}

DirectoryLock::DirectoryLock(const std::filesystem::path& directory)
    : descriptor_(open_file(directory, O_RDONLY | O_DIRECTORY)) {
  if (::flock(descriptor_.get(), LOCK_EX | LOCK_NB) == 0) return;
  if (errno != EWOULDBLOCK) throw_errno(errno, fmt::format("lock {}", directory.string()));
  throw Error(ErrorCode::busy,
              fmt::format("{} is being written by another process; wait for it or choose another "
                          "output directory",
                          directory.string()),
              EWOULDBLOCK);
}

}  // namespace spillway::data::detail
