// Files of a checkpoint: one descriptor, one owner, every transfer complete or an error with errno.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/units.hpp"

namespace spillway::model::detail {

/// A descriptor that is closed with its owner; -1 is none.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  [[nodiscard]] int value() const { return value_; }
  [[nodiscard]] bool valid() const { return value_ >= 0; }

 private:
  int value_ = -1;
};

/// A regular file opened for reading. Reads are positioned, so several threads may read at once.
/// Not a mapping: a file that shrinks or a disk that fails is an error here, not a SIGBUS.
class ReadableFile {
 public:
  explicit ReadableFile(const std::filesystem::path& path);

  [[nodiscard]] Bytes size() const { return size_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Fills `target` from `offset`. Throws `Error{corrupt_data}` at the end of the file.
  void read_at(FileOffset offset, std::span<std::byte> target) const;

 private:
  std::string path_;
  Descriptor descriptor_;
  Bytes size_;
};

/// A new file, written from its start through a buffer.
class WritableFile {
 public:
  /// Throws `Error{io_error}` if `path` exists.
  explicit WritableFile(const std::filesystem::path& path);

  void append(std::span<const std::byte> data);
  [[nodiscard]] Bytes written() const { return written_; }
  /// Everything appended is on stable storage when this returns; nothing may follow.
  void finish();

 private:
  void flush();

  std::string path_;
  Descriptor descriptor_;
  std::vector<std::byte> buffer_;
  Bytes written_;
};

/// Whole text of a small file. Throws `Error{invalid_argument}` if it has more than `limit` bytes.
[[nodiscard]] std::string read_text(const std::filesystem::path& path, Bytes limit);
/// Makes the entries of a directory durable.
void sync_directory(const std::filesystem::path& directory);

}  // namespace spillway::model::detail
