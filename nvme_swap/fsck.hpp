// An offline check of a store: headers, both commit records, every committed tile's checksum.
// Changes nothing. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nvme_swap/tile_store.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/units.hpp"

namespace spillway::nvme_swap {

struct FsckFinding {
  std::filesystem::path file;
  std::string what;
};

struct FsckReport {
  std::vector<std::filesystem::path> files{};
  std::vector<FsckFinding> damage{};  ///< what is not as it was written
  std::vector<FsckFinding> notes{};   ///< what is unusual and harmless
  /// A resume would find its step whole: no damage, or damage to the spare commit record alone.
  bool resumable = false;
  bool in_use = false;              ///< by a process that may commit further steps
  std::optional<StepIndex> step{};  ///< the newest committed one, or the one that was asked for
  std::uint64_t generation = 0;     ///< commits made
  std::uint32_t slots = 0;
  std::uint64_t tiles = 0;
  std::uint64_t tiles_checked = 0;
  Bytes bytes_checked{};
  double seconds = 0;
  std::string engine{};
};

using FsckProgress = std::function<void(Bytes done, Bytes total)>;

/// Returns names of the stores that have their first file in `directory`, sorted.
[[nodiscard]] std::vector<std::string> stores_in(const std::filesystem::path& directory);

/// Whether an error says that this process may only read a file, which says nothing of its content.
[[nodiscard]] bool may_not_write(const Error& error);

/// Checks a store; `options` are as for `TileStore::open`. Damage is reported, not thrown; throws
/// `Error{busy}` if the store is in use, and what `may_not_write` accepts if it cannot be locked.
[[nodiscard]] FsckReport check_store(const StoreOptions& options, const FsckProgress& progress);

/// Checks the newest commit alone, without a lock, while another process commits further ones.
/// Throws `Error{busy}` if these come faster than one can be read.
[[nodiscard]] FsckReport check_store_in_use(const StoreOptions& options,
                                            const FsckProgress& progress);

/// Checks the commit of step `at`, the newest or the one before it, of a store that is not in use.
[[nodiscard]] FsckReport check_commit(const StoreOptions& options, StepIndex at,
                                      const FsckProgress& progress);

}  // namespace spillway::nvme_swap
