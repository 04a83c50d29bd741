#include "runtime/engine/run/contents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "comm/launch_environment.hpp"
#include "nvme_swap/tile_store.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/run_id.hpp"
#include "runtime/engine/run/state_folders.hpp"
#include "runtime/engine/sealed_json.hpp"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

bool is_sealed(const fs::path& path) {
  try {
    static_cast<void>(read_sealed_json(path));
    return true;
  } catch (const Error& error) {
    return error.code() == ErrorCode::not_supported;  // of another version of this program
  }
}

/// Whether this is a name that AtomicFile gives a file of a run before it renames it, or that of
/// the ranks' secret, which is removed once they have met.
bool is_temporary(const std::string& name) {
  static constexpr std::array<std::string_view, 6> kPrefixes{".config.json.",   ".manifest.json.",
                                                             ".metrics.jsonl.", ".plan.json.",
                                                             ".trace.json.",    ".run."};
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  return name == comm::kJobSecretFile ||
         (name.ends_with(".tmp") && std::ranges::any_of(kPrefixes, begins));
}

/// Folders of states, or a scratch file of `spillway plan` that was killed.
std::optional<fs::path> foreign_state(const fs::path& directory) {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const bool ours =
        entry.is_directory() ? parse_run_id(name).has_value() : name.starts_with("calibration-");
    if (!ours) return entry.path();
  }
  return std::nullopt;
}

/// Whether this is the folder of a rank of a job whose start was killed.
bool is_of_rank(const fs::directory_entry& entry) {
  const bool named = entry.path().filename().string().starts_with("rank-");
  return named && entry.is_directory() &&
         (RunDirectory(entry.path()).exists() || !foreign_entry(entry.path()));
}

/// The rank whose folder in the job's directory has this path; nothing for any other folder.
std::optional<std::uint32_t> rank_of(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::size_t number = name.find_last_not_of("0123456789") + 1;
  std::uint32_t rank = 0;
  std::from_chars(name.data() + number, name.data() + name.size(), rank);
  return rank > 0 && path == rank_directory(path.parent_path(), rank) ? std::optional(rank)
                                                                      : std::nullopt;
}

/// A run that cannot be read may have a committed step.
bool may_have_committed(const RunDirectory& run) {
  if (!run.exists()) return false;
  try {
    return has_committed(run, run.read_manifest());
  } catch (const Error&) {
    return true;
  }
}

bool is_swap_file(const fs::path& path) { return path.extension() == ".swap"; }

}  // namespace

std::optional<fs::path> foreign_entry(const fs::path& directory) {
  if (!fs::exists(fs::symlink_status(directory))) return std::nullopt;
  if (!fs::is_directory(directory)) return directory;
  const RunDirectory run(directory);
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const fs::path& path = entry.path();
    if (entry.is_symlink()) return path;
    if (path == run.state() && entry.is_directory()) {
      if (auto foreign = foreign_state(path)) return foreign;
      continue;
    }
    if (is_of_rank(entry)) continue;
    const bool ours =
        entry.is_regular_file() && (path == run.lock() || is_temporary(path.filename().string()) ||
                                    (path == run.config() && is_sealed(path)));
    if (!ours) return path;
  }
  return std::nullopt;
}

nvme_swap::StoreOptions store_of(const RunDirectory& run, const RunManifest& manifest) {
  nvme_swap::StoreOptions options;
  options.directories = run.state_directories(manifest);
  options.owner = manifest.state_id;
  return options;
}

bool has_committed(const RunDirectory& run, const RunManifest& manifest) {
  return manifest.committed || nvme_swap::TileStore::has_commit(store_of(run, manifest));
}

std::optional<fs::path> rank_beyond(const fs::path& job, std::uint32_t ranks) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(job)) {
    const std::optional<std::uint32_t> rank = rank_of(entry.path());
    if (rank >= ranks && may_have_committed(RunDirectory(entry.path()))) {
      found.push_back(entry.path());
    }
  }
  const auto first = std::ranges::min_element(found);
  return first == found.end() ? std::nullopt : std::optional(*first);
}

bool holds_run(const RunDirectory& directory) {
  if (directory.exists()) return true;
  check(!fs::exists(directory.config()) || !is_sealed(directory.config()),
        ErrorCode::invalid_argument,
        fmt::format("{} has the config.json of a run and no manifest.json: put the file back if it "
                    "is lost; if the start of this run was cut off, begin again",
                    directory.root().string()));
  return false;
}

void check_is_run(const RunDirectory& directory) {
  check(holds_run(directory), ErrorCode::invalid_argument,
        fmt::format("{} is not a run: it has no manifest.json", directory.root().string()));
}

void remove_temporaries(const fs::path& directory) {
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (is_temporary(entry.path().filename().string())) remove_file(entry.path());
  }
}

std::optional<fs::path> run_in(const fs::path& directory) {
  if (!fs::is_directory(directory)) return std::nullopt;
  if (RunDirectory(directory).exists()) return directory;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    if (is_swap_file(entry.path())) return entry.path();
    if (entry.is_directory() && RunDirectory(entry.path()).exists()) return entry.path();
  }
  return std::nullopt;
}

}  // namespace spillway::engine
