// Making, opening and reading back the files of a tile store, before any engine runs on them.
#pragma once

#include <optional>
#include <vector>

#include "nvme_swap/detail/swap_file.hpp"
#include "nvme_swap/format.hpp"
#include "nvme_swap/tile_store.hpp"

namespace spillway::nvme_swap::detail {

/// Locked files of one store, and the map of their contents.
struct StoreFiles {
  StoreMap map{};
  std::vector<SwapFile> files{};
};

void check_options(const StoreOptions& options);

/// Creates the files of a new store, or takes over and empties those of one that was never
/// committed. They vanish with their owners until `SwapFile::set_remove_on_close(false)`.
[[nodiscard]] std::vector<SwapFile> empty_files(const StoreOptions& options);
/// Creates and preallocates the files of a new store; the headers are still to be written. The
/// files vanish with their owners until `SwapFile::set_remove_on_close(false)`.
[[nodiscard]] StoreFiles create_files(const StoreOptions& options, const StoreLayout& layout);
/// Opens and locks the files and checks their headers and their owner.
[[nodiscard]] StoreFiles open_files(const StoreOptions& options);
/// Opens the same for reading alone, without the locks.
[[nodiscard]] StoreFiles open_files_unlocked(const StoreOptions& options);
void use_cache(std::vector<SwapFile>& files, CacheUse cache);
/// Checks the header and the tile table of one file; throws `Error{corrupt_data}` for damage.
void check_head(const SwapFile& file);
/// Returns what the first file of a store holds; it may be in use. Throws `Error{corrupt_data}` for
/// a store of another `owner`, if one is given, and for one with a committed step and no header.
[[nodiscard]] StoreContent content_of(const SwapFile& first_file,
                                      const std::optional<RunId>& owner);

}  // namespace spillway::nvme_swap::detail
