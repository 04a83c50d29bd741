// What runtime/data needs of files beyond runtime/base/file.hpp: large files that appear complete
// or not at all, and the sole use of a directory. Every error names the path and errno.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "runtime/base/file.hpp"

namespace spillway::data::detail {

[[nodiscard]] std::uint64_t size_of_file(const FileDescriptor& file,
                                         const std::filesystem::path& path);
/// Fills a prefix of `target`; 0 at the end of the file.
[[nodiscard]] std::size_t read_some(const FileDescriptor& file, std::span<std::byte> target,
                                    const std::filesystem::path& path);

/// A new file beside `path`, named `.NAME.partial` until `publish` renames it: written piece by
/// piece, where write_file_atomically takes a whole. Removed when dropped before that. The
/// directory must be locked: see DirectoryLock.
class PartialFile {
 public:
  explicit PartialFile(std::filesystem::path path);
  ~PartialFile();
  PartialFile(PartialFile&&) = delete;

  void write(std::span<const std::byte> data);
  /// Calls fsync and close; the name does not change yet.
  void finish();
  /// Renames to `path`. Call after `finish`; synchronize_directory makes it durable.
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

 private:
  FileDescriptor descriptor_;
};

}  // namespace spillway::data::detail
