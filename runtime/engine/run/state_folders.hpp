// StateFolders: where the swap files of one run lie, a folder named by the run's id in each of the
// directories that it was given. A text file `run` in it says whose it is. Control thread only.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/file.hpp"
#include "runtime/base/run_id.hpp"

namespace spillway::engine {

/// What the file `run` in a folder of state says.
struct FolderMark {
  std::filesystem::path run;                   ///< the directory of the run that made it
  std::vector<std::filesystem::path> folders;  ///< all of that run's, in the order of its files

  bool operator==(const FolderMark&) const = default;
};
/// Replaces the mark of a folder, durably.
void write_mark(const std::filesystem::path& folder, const FolderMark& mark);
/// Reads the mark of a folder. Returns nothing if there is none, or one so large that no run has
/// written it.
[[nodiscard]] std::optional<FolderMark> read_mark(const std::filesystem::path& folder);

/// Whether another process makes or trains the run of that folder before its first commit.
[[nodiscard]] bool is_claimed(const std::filesystem::path& folder);

/// Removes from folders of run `id` what a process that was killed has left: swap files that are
/// not its state's, and files that it had begun to write.
void remove_scratch(std::span<const std::filesystem::path> folders, const RunId& id);
/// Removes the file, if it is there.
void remove_file(const std::filesystem::path& path);

/// Owns the folders of a run that begins: removes them, with all that is in them, unless they are
/// kept. A process that is forked meanwhile owns none.
class StateFolders {
 public:
  StateFolders() = default;
  StateFolders(const StateFolders&) = delete;
  StateFolders& operator=(const StateFolders&) = delete;
  ~StateFolders();

  /// Makes a folder of run `id` in each of `directories` for the run in `run`, and claims them:
  /// until this object ends no other process takes them for left over.
  void make(std::span<const std::filesystem::path> directories, const RunId& id,
            const std::filesystem::path& run);
  /// Paths of the folders, in the order of the directories.
  [[nodiscard]] const std::vector<std::filesystem::path>& paths() const { return paths_; }
  void keep();

 private:
  MadeDirectories made_;
  std::vector<std::filesystem::path> paths_;
  std::vector<LockedFile> claims_;
  const pid_t process_ = ::getpid();
  bool kept_ = false;
};

/// Removes folders in `directories` that starts of the run in `run` have left when they were
/// killed: they are this user's, nobody claims them and nothing was ever committed there. Returns a
/// line for each that was removed, and for each that stays because it holds a committed step or
/// because its folders contradict each other. The caller holds the lock of `run`.
[[nodiscard]] std::vector<std::string> remove_left_over(
    std::span<const std::filesystem::path> directories, const std::filesystem::path& run);

}  // namespace spillway::engine
