// JobKey: where a rank of the backend `tcp` has the key by which it proves that it is of its job.
// It is that of SPILLWAY_JOB_SECRET where that is set. Otherwise rank 0 makes a new one in a file
// of a directory that all ranks see, from which the others have it, and which goes with the
// meeting.
//
// Threads: one.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "comm/launch_environment.hpp"
#include "comm/tcp/proof.hpp"
#include "runtime/base/file.hpp"

namespace spillway::comm::detail {

class JobKey {
 public:
  /// Makes the file if this is rank 0 and needs it. Throws `Error{invalid_argument}` for a secret
  /// that is too short, `Error{busy}` while ranks of another start meet by that file, and
  /// `Error{not_supported}` where there is none, the ranks are on several machines and their
  /// network is not declared trusted.
  explicit JobKey(const LaunchEnvironment& launch);
  JobKey(const JobKey&) = delete;
  JobKey& operator=(const JobKey&) = delete;
  ~JobKey();

  [[nodiscard]] KeySource source() const { return source_; }
  /// Returns the key. Ranks other than 0 may call this once rank 0 has answered; their first call
  /// reads the file. Throws `Error{invalid_argument}` with a remedy if that is missing.
  [[nodiscard]] const Key& get();

 private:
  JobKey(const LaunchEnvironment& launch, KeySource source);
  void make_file();
  void remove_left_over();
  [[nodiscard]] std::optional<FileDescriptor> open_new() const;
  [[nodiscard]] std::string in_use() const;

  const std::uint32_t rank_;
  const KeySource source_;
  const std::filesystem::path path_;  // of the file, if that is the source
  std::optional<Key> key_;
  LockedFile file_;       // of rank 0, locked while the ranks meet
  MadeDirectories made_;  // removed after the file in them
};

}  // namespace spillway::comm::detail
