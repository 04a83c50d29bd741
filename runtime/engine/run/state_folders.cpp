#include "runtime/engine/run/state_folders.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <sstream>
#include <utility>

#include "nvme_swap/format.hpp"
#include "nvme_swap/tile_store.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "runtime/engine/run/contents.hpp"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kLargestMark = 1_MiB;

fs::path mark_in(const fs::path& folder) { return folder / "run"; }

/// Locks a folder. Returns nothing if another process has it.
std::optional<LockedFile> claim(const fs::path& folder) {
  LockedFile mark(open_file(mark_in(folder), O_RDONLY | O_NOFOLLOW));
  if (!mark.try_lock(mark_in(folder))) return std::nullopt;
  return mark;
}

/// Whether the folder and what marks it are of the user of this process.
bool is_own(const fs::path& folder) {
  const auto owned = [](const fs::path& path) {
    struct stat found {};
    return ::lstat(path.c_str(), &found) == 0 && found.st_uid == ::geteuid();
  };
  return owned(folder) && owned(mark_in(folder));
}

/// Whether one start has made `folder` and every other folder that its mark names: a file that
/// anybody can write is not believed of folders that say something else.
bool is_of_one_start(const fs::path& folder, const FolderMark& mark) {
  const auto is_folder = [&](const fs::path& named) {
    std::error_code missing;
    return fs::equivalent(named, folder, missing);
  };
  return std::ranges::any_of(mark.folders, is_folder) &&
         std::ranges::all_of(mark.folders, [&](const fs::path& named) {
           const auto other = fs::is_directory(named) ? read_mark(named) : std::nullopt;
           return !other || (is_own(named) && *other == mark);
         });
}

enum class LeftOver { none, nothing_committed, committed, unknown };

LeftOver what_is_left(const fs::path& folder, const FolderMark& mark) {
  const std::optional<LockedFile> ours = claim(folder);
  if (!ours || mark.folders.empty()) return LeftOver::none;
  const fs::path& first = mark.folders.front();
  if (!fs::is_directory(first)) return LeftOver::unknown;  // its drive may be elsewhere now
  if (!is_of_one_start(folder, mark)) return LeftOver::unknown;
  nvme_swap::StoreOptions options;
  options.directories = {first};
  if (!fs::exists(nvme_swap::swap_file_path(first, options.name, 0))) {
    return LeftOver::nothing_committed;
  }
  try {
    return nvme_swap::TileStore::has_commit(options) ? LeftOver::committed
                                                     : LeftOver::nothing_committed;
  } catch (const Error&) {
    return LeftOver::unknown;
  }
}

/// The first folder goes last: as long as it is there the others can be told from a committed
/// run's.
void remove_all_of(const FolderMark& mark) {
  for (auto folder = mark.folders.rbegin(); folder != mark.folders.rend(); ++folder) {
    const auto there = fs::is_directory(*folder) ? read_mark(*folder) : std::nullopt;
    if (there && *there == mark) fs::remove_all(*folder);
  }
}

}  // namespace

void write_mark(const fs::path& folder, const FolderMark& mark) {
  std::string text = mark.run.string() + "\n";
  for (const fs::path& path : mark.folders) text += path.string() + "\n";
  write_file_atomically(mark_in(folder), text);
}

std::optional<FolderMark> read_mark(const fs::path& folder) {
  if (!fs::is_regular_file(fs::symlink_status(mark_in(folder)))) return std::nullopt;
  if (Bytes{fs::file_size(mark_in(folder))} > kLargestMark) return std::nullopt;
  std::istringstream text(read_text_file(mark_in(folder), kLargestMark));
  FolderMark mark;
  std::string line;
  if (std::getline(text, line)) mark.run = line;
  while (std::getline(text, line)) mark.folders.emplace_back(line);
  return mark;
}

bool is_claimed(const fs::path& folder) { return fs::exists(mark_in(folder)) && !claim(folder); }

void remove_file(const fs::path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    throw_errno(errno, fmt::format("remove {}", path.string()));
  }
}

void remove_scratch(std::span<const fs::path> folders, const RunId& id) {
  for (const fs::path& folder : folders) {
    if (folder.filename() != to_text(id)) continue;
    remove_temporaries(folder);
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".swap") && !name.starts_with("tiles-")) remove_file(entry.path());
    }
  }
}

void StateFolders::make(std::span<const fs::path> directories, const RunId& id,
                        const fs::path& run) {
  for (const fs::path& directory : directories) {
    made_.make(directory);
    paths_.push_back(fs::canonical(directory) / to_text(id));
  }
  for (const fs::path& path : std::set<fs::path>(paths_.begin(), paths_.end())) {
    made_.make(path);
    write_mark(path, {.run = run, .folders = paths_});
    if (auto claimed = claim(path)) claims_.push_back(std::move(*claimed));
  }
}

void StateFolders::keep() {
  kept_ = true;
  made_.keep();
}

StateFolders::~StateFolders() {
  if (::getpid() != process_) keep();  // it was forked: they are the other's
  if (kept_) return;
  for (const fs::path& path : paths_) {
    std::error_code failed;
    fs::remove_all(path, failed);
    if (failed) log_warning("remove {}: {}", path.string(), failed.message());
  }
}

std::vector<std::string> remove_left_over(std::span<const fs::path> directories,
                                          const fs::path& run) {
  std::vector<std::string> lines;
  for (const fs::path& directory : directories) {
    if (!fs::is_directory(directory)) continue;
    std::vector<fs::path> folders;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
      const bool named = parse_run_id(entry.path().filename().string()).has_value();
      if (named && entry.is_directory() && !entry.is_symlink()) folders.push_back(entry.path());
    }
    std::ranges::sort(folders);
    for (const fs::path& folder : folders) {
      const auto mark = fs::is_directory(folder) ? read_mark(folder) : std::nullopt;
      if (!mark || mark->run != run || !is_own(folder)) continue;
      switch (what_is_left(folder, *mark)) {
        case LeftOver::none: break;
        case LeftOver::nothing_committed:
          remove_all_of(*mark);
          lines.push_back(fmt::format("removed {}, which a start of this run that was killed left",
                                      folder.string()));
          break;
        case LeftOver::committed:
        case LeftOver::unknown:
          lines.push_back(
              fmt::format("{} is of an earlier run in {} and is left as it is; remove "
                          "it if nobody needs it",
                          folder.string(), run.string()));
      }
    }
  }
  return lines;
}

}  // namespace spillway::engine
