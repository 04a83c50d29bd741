// RunLock: the claim of one process to a run directory. Taken before anything else is written
// there; readers never wait for it. Control thread only.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "runtime/base/file.hpp"

namespace spillway::engine {

/// Owns the lock on RUN/lock and, until it is kept, what it made to get it: the file itself and the
/// directories above it go with the lock.
class RunLock {
 public:
  /// Locks `root`, which may be missing. Throws `Error{busy}` naming the process that has the lock:
  /// at once while that is alive, after `patience` if it is exiting (a killed process keeps its
  /// locks until its memory is gone) or cannot be seen from here. Of the directories above, the
  /// nearest `shared` were made by another rank of the job and count as made by this one too: the
  /// last to end removes them. A process that is forked meanwhile has no part in the lock.
  RunLock(std::filesystem::path root, std::chrono::milliseconds patience, std::uint64_t shared = 0);
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock();

  /// Number of directories that were made.
  [[nodiscard]] std::uint64_t made() const { return made_.count(); }
  /// Returns the directory without links, absolute.
  [[nodiscard]] const std::filesystem::path& root() const { return root_; }
  void keep();
  /// Whether the lock's name still leads to the file that is locked. Allocates nothing.
  [[nodiscard]] bool still_there() const;

 private:
  explicit RunLock(std::filesystem::path root) : root_(std::move(root)) {}
  void open();
  [[nodiscard]] bool try_lock();
  void write_holder() const;

  MadeDirectories made_;  // removed after the file in them
  std::filesystem::path root_;
  std::filesystem::path path_;
  LockedFile file_;
  const pid_t process_ = ::getpid();
  bool made_file_ = false;
  bool held_ = false;
};

}  // namespace spillway::engine
