#include "runtime/engine/run/copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "runtime/engine/run/state_folders.hpp"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

/// Whether two paths lead to one directory, by whatever links or mounts.
bool is_one(const fs::path& a, const fs::path& b) {
  std::error_code missing;
  return fs::equivalent(a, b, missing) && !missing;
}

}  // namespace

std::optional<fs::path> original_of(const RunDirectory& run, const RunManifest& manifest) {
  std::vector<fs::path> candidates{manifest.directory};
  for (const fs::path& folder : run.state_directories(manifest)) {
    if (const auto mark = read_mark(folder)) candidates.push_back(mark->run);
  }
  for (const fs::path& candidate : candidates) {
    const RunDirectory other(candidate);
    if (!other.exists() || fs::equivalent(candidate, run.root())) continue;
    try {
      if (other.read_manifest().id == manifest.id) return candidate;
    } catch (const Error& error) {
      log_warning("{} is not looked at: {}", candidate.string(), error.what());
    }
  }
  return std::nullopt;
}

bool share_folders(const RunDirectory& copy, const RunManifest& manifest,
                   const RunDirectory& original) {
  const auto states = original.state_directories(original.read_manifest());
  const auto is_original = [&](const fs::path& folder) {
    return std::ranges::any_of(states, [&](const auto& other) { return is_one(folder, other); });
  };
  return is_one(copy.checkpoints(), original.checkpoints()) ||
         std::ranges::any_of(copy.state_directories(manifest), is_original);
}

void check_folder_of_rank(const RunDirectory& folder, const RunDirectory& job, std::uint32_t rank) {
  if (rank == 0 || !job.exists()) return;
  const fs::path original = job.read_manifest().directory;
  const bool shared = !is_one(original, job.root()) && RunDirectory(original).exists() &&
                      is_one(rank_directory(original, rank), folder.root());
  check(!shared, ErrorCode::invalid_argument,
        fmt::format("{} is also the folder of rank {} of {}: the run in {} is a copy that shares "
                    "it; copy what the link leads to, or start a new run with --from",
                    folder.root().string(), rank, original.string(), job.root().string()));
}

}  // namespace spillway::engine
