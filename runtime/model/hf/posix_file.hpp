// Large files, read and written piece by piece: every transfer is complete or an error.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/file.hpp"
#include "runtime/base/units.hpp"

namespace spillway::model::detail {

/// A regular file opened for reading. Reads are positioned, so several threads may read at once. It
/// is not mapped: a file that shrinks or a disk that fails is an error here, not a SIGBUS.
class ReadableFile {
 public:
  explicit ReadableFile(const std::filesystem::path& path);

  [[nodiscard]] Bytes size() const { return size_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Fills `target` from `offset`. Throws `Error{corrupt_data}` at the end of the file.
  void read_at(FileOffset offset, std::span<std::byte> target) const;

 private:
  std::string path_;
  FileDescriptor descriptor_;
  Bytes size_;
};

/// A new file, written from its start through a buffer.
class WritableFile {
 public:
  /// Throws `Error{io_error}` if `path` exists.
  explicit WritableFile(const std::filesystem::path& path);

  void append(std::span<const std::byte> data);
  [[nodiscard]] Bytes written() const { return written_; }
  /// Puts everything appended on stable storage; nothing may follow.
  void finish();

 private:
  void flush();

  std::string path_;
  FileDescriptor descriptor_;
  std::vector<std::byte> buffer_;
  Bytes written_;
};

}  // namespace spillway::model::detail
