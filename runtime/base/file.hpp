// Small files, for configuration, manifests and checkpoints.
// The swap files of nvme_swap have their own engines.
//
// Errors are Error{io_error} with errno, the path and the operation.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/units.hpp"

namespace spillway {

/// Owns an open file descriptor. Move-only; closes itself.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor(FileDescriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      close();
      descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { close(); }

  [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }
  [[nodiscard]] int get() const { return descriptor_; }
  /// Closes now. Logs a failure: what had to be durable was synchronised before.
  void close() noexcept;

 private:
  int descriptor_ = -1;
};

/// Owns an open file and, once it is taken, the lock on it (flock). A process that is forked shares
/// the lock, and would keep it after its holder: so the holder gives it back by name, and a forked
/// process, which has it from somebody else, never does. Move-only.
class LockedFile {
 public:
  LockedFile() = default;
  explicit LockedFile(FileDescriptor file) : file_(std::move(file)) {}
  LockedFile(LockedFile&&) noexcept = default;
  LockedFile& operator=(LockedFile&& other) noexcept;
  ~LockedFile() { unlock(); }

  [[nodiscard]] int get() const { return file_.get(); }
  /// Returns false while another process has the lock. `path` is for errors.
  [[nodiscard]] bool try_lock(const std::filesystem::path& path);

 private:
  void unlock() noexcept;

  FileDescriptor file_;
  pid_t holder_ = 0;  ///< 0: it is not locked here
};

/// Calls open(2) with O_CLOEXEC; `mode` is for files that it creates.
[[nodiscard]] FileDescriptor open_file(const std::filesystem::path& path, int flags,
                                       unsigned mode = 0666);

/// Opens a regular file for reading. Throws `Error{invalid_argument}` naming the kind for a
/// directory, a pipe, a socket or a device, at once: it never waits for a pipe's writer.
[[nodiscard]] FileDescriptor open_regular_file(const std::filesystem::path& path);

/// Whether something has the name `path`. Throws where the system cannot say.
[[nodiscard]] bool is_there(const std::filesystem::path& path);
/// Whether the name `path` still leads to the open file `descriptor`, likewise.
[[nodiscard]] bool leads_to(const std::filesystem::path& path, int descriptor);

/// Reads a whole regular file. Throws `Error{invalid_argument}` naming both sizes if it is longer
/// than `limit`. Works for files of /proc and /sys, whose size reads as 0.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, Bytes limit);

/// A new file that takes its target's place whole, or goes. Readers see the old file or the new
/// one, and once `replace` returns the new one is durable.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path target);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Adds `content` at the end.
  void write(std::span<const std::byte> content);
  void replace();

 private:
  std::filesystem::path target_;
  std::filesystem::path path_;  ///< beside the target; empty once it has taken its place
  FileDescriptor file_;
};

/// Replaces or creates `path` in one step that survives a crash at any instant: readers see the old
/// file or the new one, whole, and once this returns the new one is durable. On failure the old one
/// is untouched and nothing is left beside it; if only the directory could not be synchronised, the
/// new one is in its place and may go with a crash.
void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> content);
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// Makes the names in `directory` durable.
void synchronize_directory(const std::filesystem::path& directory);

/// Directories that were made for a purpose and go with their owner, as far as they are empty then,
/// unless they are kept. Move-only.
class MadeDirectories {
 public:
  MadeDirectories() = default;
  MadeDirectories(MadeDirectories&&) noexcept = default;
  MadeDirectories& operator=(MadeDirectories&&) = delete;
  ~MadeDirectories();

  /// Makes `directory` and the parents that it lacks; each name is durable when this returns.
  void make(const std::filesystem::path& directory);
  /// Makes a directory that is not there yet, likewise. Returns false if something has its name,
  /// also where another process has just made it.
  [[nodiscard]] bool make_new(const std::filesystem::path& directory);
  /// Treats `directory` and those above it, `count` in all, as made here although another owner has
  /// made them: each of the two removes those that the other has left empty.
  void share(const std::filesystem::path& directory, std::uint64_t count);
  [[nodiscard]] std::size_t count() const { return made_.size(); }
  void keep() { made_.clear(); }

 private:
  std::vector<std::filesystem::path> made_;  ///< in the order of their making
};

}  // namespace spillway
