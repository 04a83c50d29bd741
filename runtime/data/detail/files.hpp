// The file operations of runtime/data: owned descriptors, and files that appear complete or not at
// all. Every error names the path and errno.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace spillway::data::detail {

/// Owns one descriptor. Move-only.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  [[nodiscard]] int get() const { return descriptor_; }
  /// Closes now; throws when the file system reports a late write error.
  void close(const std::filesystem::path& path);

 private:
  int descriptor_ = -1;
};

/// Opens a regular file for reading. Throws `Error{io_error}`, or `Error{invalid_argument}` for a
/// directory, pipe or device.
[[nodiscard]] FileDescriptor open_regular(const std::filesystem::path& path);
[[nodiscard]] std::uint64_t size_of_file(const FileDescriptor& file,
                                         const std::filesystem::path& path);
/// Fills a prefix of `target`; 0 at the end of the file.
[[nodiscard]] std::size_t read_some(const FileDescriptor& file, std::span<std::byte> target,
                                    const std::filesystem::path& path);
/// The whole file; `Error{corrupt_data}` when it is longer than `limit` bytes.
[[nodiscard]] std::string read_text(const std::filesystem::path& path, std::uint64_t limit);

/// A new file beside `path`, named `.NAME.partial` until `publish` renames it. Removed when dropped
/// before that. One writer a directory: see DirectoryLock.
class PartialFile {
 public:
  explicit PartialFile(std::filesystem::path path);
  ~PartialFile();
  PartialFile(PartialFile&&) = delete;

  void write(std::span<const std::byte> data);
  /// fsync and close; the name does not change yet.
  void finish();
  /// Renames to `path`. Call after `finish`; `sync_directory` makes it durable.
  void publish();

 private:
  std::filesystem::path path_;
  std::filesystem::path partial_;
  FileDescriptor file_;
  bool published_ = false;
};

/// Exclusive use of a directory among processes that lock it. Throws `Error{busy}`.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::filesystem::path& directory);
  /// Makes renames in the directory durable.
  void sync();

 private:
  std::filesystem::path directory_;
  FileDescriptor descriptor_;
};

}  // namespace spillway::data::detail
