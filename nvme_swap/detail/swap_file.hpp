// SwapFile: one open, locked swap file. Control thread only.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "nvme_swap/tile_store.hpp"
#include "runtime/base/units.hpp"

namespace spillway::nvme_swap::detail {

/// Remedy for state that is gone; it ends an error's message.
inline constexpr std::string_view kLossRemedy =
    "mount the drive that holds the run's state, put the file back from a copy, or start a new run "
    "from a kept checkpoint";

/// Owns the descriptor and the lock on its file description. io_uring registers that description,
/// so the lock of a killed process lasts until its writes in flight are over.
class SwapFile {
 public:
  /// Creates `path` (0600, O_EXCL, O_NOFOLLOW) or, if it exists, takes it over as it is: the caller
  /// decides from its content whether it may be replaced. Throws `Error{busy}` when another process
  /// keeps it locked for longer than `patience`.
  [[nodiscard]] static SwapFile create_or_adopt(const std::filesystem::path& path,
                                                std::chrono::milliseconds patience);
  /// Throws `Error{corrupt_data}` if there is none.
  [[nodiscard]] static SwapFile open_existing(const std::filesystem::path& path,
                                              std::chrono::milliseconds patience);
  /// Opens it for reading alone, while another process may use it. Throws `Error{corrupt_data}` if
  /// there is none.
  [[nodiscard]] static SwapFile open_unlocked(const std::filesystem::path& path);
  SwapFile(SwapFile&& other) noexcept;
  SwapFile& operator=(SwapFile&& other) = delete;
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;
  /// Deletes if asked to, unlocks and closes; no request on the file may be in flight.
  ~SwapFile();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  /// Whether the file existed before.
  [[nodiscard]] bool adopted() const { return adopted_; }
  /// Sets whether closing removes the file, as at first one made or emptied here.
  void set_remove_on_close(bool remove) { remove_on_close_ = remove; }
  [[nodiscard]] std::uint64_t size() const;
  /// Throws `Error{corrupt_data}` unless the path leads to this file and it has `bytes` or more.
  void check_present(std::uint64_t bytes) const;

  /// Drops the content; the file is ours from here on.
  void truncate();
  /// Reserves every block, so that no later write can run out of space.
  void preallocate(std::uint64_t bytes);
  /// Switches to O_DIRECT. Returns false, and notes it, where the filesystem has none.
  bool use_direct_io();
  /// Reads what `target` can hold, blocking, and returns the bytes read. Only before
  /// `use_direct_io`.
  [[nodiscard]] std::size_t read_at(std::uint64_t offset, std::span<std::byte> target) const;

 private:
  SwapFile(std::filesystem::path path, int descriptor, bool adopted);
  void lock(std::chrono::milliseconds patience);
  /// Whether its last user removed it while this one waited for the lock.
  [[nodiscard]] bool is_unlinked() const;
  void check_regular() const;
  void check_ownership() const;

  std::filesystem::path path_;
  int descriptor_;
  const pid_t process_ = ::getpid();  ///< a forked one leaves file and lock to it
  bool adopted_;
  bool remove_on_close_ = false;
};

/// Throws `Error{does_not_fit}` naming needed and available space unless every filesystem has room
/// for the files that lie on it.
void check_free_space(std::span<const SwapFile> files, std::span<const std::uint64_t> file_bytes);

/// Makes the entries of `directory` durable.
void flush_directory(const std::filesystem::path& directory);

}  // namespace spillway::nvme_swap::detail
