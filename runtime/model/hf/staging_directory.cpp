#include "runtime/model/hf/staging_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "runtime/model/hf/posix_file.hpp"

namespace spillway::model::detail {
namespace {

namespace fs = std::filesystem;

/// Whether a file is part of an export, and so one that a new export replaces.
bool belongs_to_export(const std::string& name) {
  return name == "config.json" || name == "model.safetensors.index.json" ||
         (name.starts_with("model") && name.ends_with(".safetensors"));
}

void remove_contents(const fs::path& directory) {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    fs::remove_all(entry.path());
  }
}

/// Returns false if the file system cannot exchange two names.
bool rename_directory(const fs::path& from, const fs::path& to, unsigned int flags) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) return true;
  if (flags != 0 && (errno == EINVAL || errno == ENOSYS)) return false;
  throw_errno(errno, fmt::format("rename {} to {}", from.string(), to.string()));
}

/// Returns an absolute path without a trailing slash, links resolved as far as it exists.
fs::path resolve(const fs::path& target) {
  fs::path path = fs::weakly_canonical(fs::absolute(target));
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

StagingDirectory::StagingDirectory(const fs::path& target, TargetPolicy policy) try
    : target_(resolve(target)),
      staging_(target_.parent_path() / fmt::format(".{}.partial", target_.filename().string())),
      policy_(policy) {
  check(target_.has_filename(), ErrorCode::invalid_argument,
        fmt::format("{} cannot be an export; name a directory below it", target_.string()));
  check_target();
  made_.make(target_.parent_path());
  take_lock();
  remove_contents(staging_);
} catch (const fs::filesystem_error& error) {
  throw Error(ErrorCode::io_error, error.what(), error.code().value());
}

StagingDirectory::~StagingDirectory() {
  if (!lock_.is_open()) return;
  std::error_code failed;
  fs::remove_all(staging_, failed);
  if (failed) log_warning("remove {}: {}", staging_.string(), failed.message());
}

void StagingDirectory::check_target() const {
  if (!fs::exists(target_)) return;
  check(fs::is_directory(target_), ErrorCode::invalid_argument,
        fmt::format("{} exists and is not a directory; choose another name", target_.string()));
  check(
      policy_ == TargetPolicy::replace || fs::is_empty(target_), ErrorCode::invalid_argument,
      fmt::format(
          "{} exists and is not empty; choose another name, or replace what it holds with --force",
          target_.string()));
}

void StagingDirectory::take_lock() {
  if (::mkdir(staging_.c_str(), 0777) != 0 && errno != EEXIST) {
    throw_errno(errno, fmt::format("create {}", staging_.string()));
  }
  FileDescriptor opened = open_file(staging_, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  const bool locked = ::flock(opened.get(), LOCK_EX | LOCK_NB) == 0;
  if (!locked && errno != EWOULDBLOCK)
    throw_errno(errno, fmt::format("lock {}", staging_.string()));
  // Between open and lock another writer may have published this very directory, or removed it.
  check(locked && leads_to(staging_, opened.get()), ErrorCode::busy,
        fmt::format("{} is being written by another process; wait for it or choose another name",
                    target_.string()));
  lock_ = std::move(opened);
}

void StagingDirectory::write_text(std::string_view name, std::string_view text) const {
  WritableFile file(staging_ / name);
  file.append(std::as_bytes(std::span(text)));
  file.finish();
}

void StagingDirectory::keep_foreign_files() const {
  constexpr auto kHow = fs::copy_options::recursive | fs::copy_options::create_hard_links;
  for (const fs::directory_entry& entry : fs::directory_iterator(target_)) {
    const std::string name = entry.path().filename().string();
    if (belongs_to_export(name) || fs::exists(staging_ / name)) continue;
    if (entry.is_symlink()) {
      fs::copy_symlink(entry.path(), staging_ / name);
    } else {
      fs::copy(entry.path(), staging_ / name, kHow);
    }
  }
}

void StagingDirectory::exchange_names() const {
  if (rename_directory(staging_, target_, RENAME_EXCHANGE)) return;
  // A file system that cannot exchange (NFS): the target has no name for a moment.
  const fs::path aside =
      target_.parent_path() / fmt::format(".{}.replaced", target_.filename().string());
  fs::remove_all(aside);
  fs::rename(target_, aside);
  fs::rename(staging_, target_);
  fs::rename(aside, staging_);
}

void StagingDirectory::publish() try {
  check_target();
  const bool replaces = fs::exists(target_);
  if (replaces) keep_foreign_files();
  synchronize_directory(staging_);
  const FileDescriptor parent = open_file(target_.parent_path(), O_RDONLY | O_DIRECTORY);
  if (replaces) {
    // The old directory bears the hidden name then and goes the way of a cancelled export.
    exchange_names();
  } else {
    rename_directory(staging_, target_, 0);
  }
  if (::fsync(parent.get()) != 0) {
    const int reason = errno;
    // What is told as a failure must leave what it found, so that it can be tried again.
    if (replaces) {
      exchange_names();
    } else {
      rename_directory(target_, staging_, 0);
    }
    throw_errno(reason, fmt::format("fsync {}", target_.parent_path().string()));
  }
  made_.keep();
  std::error_code failed;
  if (replaces) fs::remove_all(staging_, failed);
  if (failed) log_warning("remove {}: {}", staging_.string(), failed.message());
  lock_.close();
} catch (const fs::filesystem_error& error) {
  throw Error(ErrorCode::io_error, error.what(), error.code().value());
}

}  // namespace spillway::model::detail
