// What a directory holds, told by its names: whether a run may begin there, and whether an export
// may take its place. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "nvme_swap/tile_store.hpp"
#include "runtime/engine/run/directory.hpp"

namespace spillway::engine {

/// Returns the first entry of `directory` that no start of a run leaves there, if there is one:
/// what a run that begins must not touch. Nothing for a directory that is missing, empty, or holds
/// what a start that was killed has left. Not for a directory with a manifest.
[[nodiscard]] std::optional<std::filesystem::path> foreign_entry(
    const std::filesystem::path& directory);

/// Returns where the state of a run with this manifest lies.
[[nodiscard]] nvme_swap::StoreOptions store_of(const RunDirectory& run,
                                               const RunManifest& manifest);
/// Whether a run with this manifest has a committed step; its state may be lost all the same.
[[nodiscard]] bool has_committed(const RunDirectory& run, const RunManifest& manifest);

/// Returns the first folder in the run directory of a job of `ranks` that belongs to a higher rank
/// and has, or may have, a committed step, if there is one: another job has left it.
[[nodiscard]] std::optional<std::filesystem::path> rank_beyond(const std::filesystem::path& job,
                                                               std::uint32_t ranks);

/// Whether a directory has a run. Throws `Error{invalid_argument}` for one with the configuration
/// of a run and no manifest.
[[nodiscard]] bool holds_run(const RunDirectory& directory);
/// Throws `Error{invalid_argument}` unless the directory has a run.
void check_is_run(const RunDirectory& directory);

/// Removes what a process that was killed had begun to write in place of a run's files. The caller
/// holds the run's lock.
void remove_temporaries(const std::filesystem::path& directory);

/// Returns a run, a kept checkpoint or swap files in `directory` or below it, if there is one.
[[nodiscard]] std::optional<std::filesystem::path> run_in(const std::filesystem::path& directory);

}  // namespace spillway::engine
