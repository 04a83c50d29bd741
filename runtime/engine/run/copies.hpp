// Copies of a run: two directories whose manifests have one id, and what they may share.
// Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "runtime/engine/run/directory.hpp"

namespace spillway::engine {

/// Returns another directory of the same run that is still there, if any: where the manifest says
/// that the run was trained last, or where the mark of its state does.
[[nodiscard]] std::optional<std::filesystem::path> original_of(const RunDirectory& run,
                                                               const RunManifest& manifest);

/// Whether a copy uses a folder of its original, for checkpoints or for its state, wherever that is
/// now. `cp -r` keeps links, so a copy may.
[[nodiscard]] bool share_folders(const RunDirectory& copy, const RunManifest& manifest,
                                 const RunDirectory& original);

/// Throws `Error{invalid_argument}` if the folder of a rank is a link to that of another job, of
/// which `job` is a copy.
void check_folder_of_rank(const RunDirectory& folder, const RunDirectory& job, std::uint32_t rank);

}  // namespace spillway::engine
