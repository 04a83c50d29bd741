// Checkpoints of an embedded trainer: a folder with a store of one committed step, and
// parameters.json, which says what the state is of. The file is written last: a folder without it
// is no checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

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
  /// `updates`: how often each parameter was updated.
  void complete(const EmbeddedOptions& options, std::span<const std::string> names,
                const EmbeddedLayout& layout, std::span<const std::uint64_t> updates);

 private:
  std::filesystem::path directory_;
  bool complete_ = false;
};

/// Returns how often each parameter was updated; empty where the state says it for all of them.
/// Throws `Error{invalid_argument}` that names the first difference unless `directory` has a
/// checkpoint of these parameters, `Error{corrupt_data}` if it is damaged.
[[nodiscard]] std::vector<std::uint64_t> check_checkpoint(const std::filesystem::path& directory,
                                                          const EmbeddedOptions& options,
                                                          std::span<const std::string> names,
                                                          const EmbeddedLayout& layout);

}  // namespace spillway::engine
