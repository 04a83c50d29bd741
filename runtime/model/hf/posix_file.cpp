#include "runtime/model/hf/posix_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/error.hpp"

namespace spillway::model::detail {
namespace {

constexpr std::size_t kWriteBuffer = std::size_t{1} << 20;

/// read(2) and write(2) move at most 2^31 - 4096 bytes; smaller calls behave alike everywhere.
constexpr std::size_t kLargestTransfer = std::size_t{1} << 30;

}  // namespace

ReadableFile::ReadableFile(const std::filesystem::path& path)
    : path_(path.string()), descriptor_(open_regular_file(path)) {
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0) throw_errno(errno, fmt::format("stat {}", path_));
  size_ = Bytes{static_cast<std::uint64_t>(status.st_size)};
}

void ReadableFile::read_at(FileOffset offset, std::span<std::byte> target) const {
  std::uint64_t position = offset.value();
  while (!target.empty()) {
    const std::size_t wanted = std::min(target.size(), kLargestTransfer);
    const ssize_t got =
        ::pread(descriptor_.get(), target.data(), wanted, static_cast<off_t>(position));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(errno, fmt::format("read {} at byte {}", path_, position));
    check(got != 0, ErrorCode::corrupt_data,
          fmt::format("{} ends at byte {}, {} bytes too early; copy it again", path_, position,
                      target.size()));
    target = target.subspan(static_cast<std::size_t>(got));
    position += static_cast<std::uint64_t>(got);
  }
}

WritableFile::WritableFile(const std::filesystem::path& path)
    : path_(path.string()), descriptor_(open_file(path, O_WRONLY | O_CREAT | O_EXCL)) {
  buffer_.reserve(kWriteBuffer);
}

void WritableFile::append(std::span<const std::byte> data) {
  written_ += Bytes{data.size()};
  while (!data.empty()) {
    if (buffer_.size() == kWriteBuffer) flush();
    const std::size_t part = std::min(data.size(), kWriteBuffer - buffer_.size());
    buffer_.insert(buffer_.end(), data.begin(), data.begin() + static_cast<std::ptrdiff_t>(part));
    data = data.subspan(part);
  }
}

void WritableFile::flush() {
  std::span<const std::byte> rest = buffer_;
  while (!rest.empty()) {
    const ssize_t put = ::write(descriptor_.get(), rest.data(), rest.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_errno(errno, fmt::format("write {}", path_));
    rest = rest.subspan(static_cast<std::size_t>(put));
  }
  buffer_.clear();
}

void WritableFile::finish() {
  flush();
  if (::fsync(descriptor_.get()) != 0) throw_errno(errno, fmt::format("fsync {}", path_));
  descriptor_.close();
}

}  // namespace spillway::model::detail
