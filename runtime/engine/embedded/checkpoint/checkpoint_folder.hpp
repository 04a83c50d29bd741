// Checkpoints of an embedded trainer: a folder with a store of one committed step, and
// parameters.json, which says what the state is of. The file is written last: a folder without it
// is no checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/embedded/plan/layout.hpp"

namespace spillway::engine {

/// A folder that is removed with what it holds unless it is completed.
class NewCheckpoint {
 public:
  /// Makes the folder. `description`: the text of its parameters.json. Throws
  /// `Error{invalid_argument}` if there is something at `directory`.
  NewCheckpoint(std::filesystem::path directory, std::string description);
  ~NewCheckpoint();
  NewCheckpoint(const NewCheckpoint&) = delete;
  NewCheckpoint& operator=(const NewCheckpoint&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return directory_; }
  void complete();

 private:
  std::filesystem::path directory_;
  std::string description_;
  bool complete_ = false;
};

/// Returns the text of parameters.json in `directory`; `updates`: how often each parameter was
/// updated. Throws `Error{invalid_argument}` if it is more than can be read again.
[[nodiscard]] std::string describe_checkpoint(const std::filesystem::path& directory,
                                              const EmbeddedOptions& options,
                                              const EmbeddedLayout& layout,
                                              std::span<const std::uint64_t> updates);

/// Returns how often each parameter was updated; empty where the state has one number for all.
/// Throws `Error{invalid_argument}` that names the first difference unless `directory` has a
/// checkpoint of these parameters, `Error{corrupt_data}` if it is damaged.
[[nodiscard]] std::vector<std::uint64_t> check_checkpoint(const std::filesystem::path& directory,
                                                          const EmbeddedOptions& options,
                                                          const EmbeddedLayout& layout);

}  // namespace spillway::engine
