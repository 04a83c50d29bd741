// Finding a commit in the record areas of a store's first file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nvme_swap/detail/swap_file.hpp"
#include "nvme_swap/format.hpp"
#include "nvme_swap/tile_store.hpp"

namespace spillway::nvme_swap::detail {

/// One of the commits in the record areas.
struct Recovered {
  std::vector<TileRecord> tiles{};
  std::optional<CommitHeader> commit{};  ///< empty if nothing was ever committed
  std::uint64_t generation = 0;
  std::size_t area = 0;   ///< that holds it
  bool is_older = false;  ///< the other area holds the commit after it
  std::string warning{};  ///< why the other area could not be used, if so
};

/// Reads both record areas and returns the newest commit, or that of step `at`. Throws
/// `Error{corrupt_data}` if neither is valid, or neither is of that step.
[[nodiscard]] Recovered recover(const StoreMap& map, const SwapFile& first_file,
                                std::optional<StepIndex> at = std::nullopt);

/// Recovers likewise while a commit may be writing one of the areas.
[[nodiscard]] Recovered recover_in_use(const StoreMap& map, const SwapFile& first_file,
                                       std::optional<StepIndex> at = std::nullopt);
/// Throws `Error{corrupt_data}` unless a commit was recovered from `first_file`.
void check_committed(const Recovered& recovered, const SwapFile& first_file);

/// Whether a first file whose header is blank has a committed record behind it. A creation that was
/// cut off has none: the header is durable before the first commit begins.
[[nodiscard]] bool has_committed_record(const SwapFile& first_file);

}  // namespace spillway::nvme_swap::detail
