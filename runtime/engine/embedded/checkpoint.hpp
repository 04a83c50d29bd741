// Checkpoints of an embedded trainer: a folder with a store of one committed step, and
// parameters.json, which says what the state is of. The file is written last: a folder without it
// is no checkpoint.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "runtime/engine/embedded/layout.hpp"

namespace spillway::engine {

/// A folder that is removed with what it holds unless it is completed.
class NewCheckpoint {
 public:
  /// Throws `Error{invalid_argument}` if there is something at `directory`.
  explicit NewCheckpoint(std::filesystem::path directory);
  ~NewCheckpoint();
  NewCheckpoint(const NewCheckpoint&) = delete;
  NewCheckpoint& operator=(const NewCheckpoint&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return directory_; }
  void complete(const EmbeddedOptions& options, std::span<const std::string> names,
                const EmbeddedLayout& layout);

 private:
  std::filesystem::path directory_;
  bool complete_ = false;
};

/// Throws `Error{invalid_argument}` that names the first difference unless `directory` has a
/// checkpoint of these parameters, `Error{corrupt_data}` if it is damaged.
void check_checkpoint(const std::filesystem::path& directory, const EmbeddedOptions& options,
                      std::span<const std::string> names, const EmbeddedLayout& layout);

}  // namespace spillway::engine
