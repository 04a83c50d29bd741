// A directory that appears as a whole: filled under a hidden name, then renamed to its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/base/file.hpp"

namespace spillway::model::detail {

enum class TargetPolicy : std::uint8_t { must_be_empty, replace };

/// Owns `.NAME.partial` beside the target, locked against other processes. It goes with its owner,
/// and with it the parents that were missing, unless it was published.
class StagingDirectory {
 public:
  /// Throws `Error{invalid_argument}` if the policy forbids the target, `Error{busy}` if another
  /// process is at it. Creates missing parents.
  StagingDirectory(const std::filesystem::path& target, TargetPolicy policy);
  StagingDirectory(const StagingDirectory&) = delete;
  StagingDirectory& operator=(const StagingDirectory&) = delete;
  ~StagingDirectory();

  /// Returns where to put files; each must be durable before `publish`.
  [[nodiscard]] const std::filesystem::path& path() const { return staging_; }
  void write_text(std::string_view name, std::string_view text) const;
  /// Gives the directory its name. A target that is replaced keeps its other files: they are linked
  /// into the new one first. A failure leaves the target as it was.
  void publish();

 private:
  void check_target() const;
  void take_lock();
  void keep_foreign_files() const;
  void exchange_names() const;

  MadeDirectories made_;  // after what is in them
  std::filesystem::path target_;
  std::filesystem::path staging_;
  TargetPolicy policy_;
  FileDescriptor lock_;
};

}  // namespace spillway::model::detail
