// The check of a store that a process is using: its newest commit, from what is on disk.
#include <algorithm>
#include <chrono>

#include "nvme_swap/committed_tiles.hpp"
#include "nvme_swap/detail/aligned_buffer.hpp"
#include "nvme_swap/format.hpp"
#include "nvme_swap/fsck.hpp"
#include "runtime/base/error.hpp"

namespace spillway::nvme_swap {
namespace {

/// False if the store has moved on.
bool check_tiles(const CommittedTiles& tiles, FsckReport& report, const FsckProgress& progress) {
  Bytes total{};
  Bytes largest{};
  const std::vector<Bytes>& layout = tiles.layout().tiles;
  for (std::uint32_t i = 0; i < layout.size(); ++i) {
    if (!tiles.has(TileIndex{i})) continue;
    total += layout[i];
    largest = std::max(largest, layout[i]);
  }
  detail::AlignedBuffer buffer(largest.value());
  for (std::uint32_t i = 0; i < layout.size(); ++i) {
    if (!tiles.has(TileIndex{i})) continue;
    try {
      const auto result = tiles.read(TileIndex{i}, buffer.bytes().first(layout[i].value()));
      if (result == TileRead::moved_on) return false;
    } catch (const Error& error) {
      report.damage.push_back({.file = report.files.front(), .what = error.what()});
      report.resumable = false;
    }
    ++report.tiles_checked;
    report.bytes_checked += layout[i];
    if (progress) progress(report.bytes_checked, total);
  }
  return true;
}

}  // namespace

FsckReport check_store_in_use(const StoreOptions& options, const FsckProgress& progress) {
  constexpr int kAttempts = 8;
  const auto begin = std::chrono::steady_clock::now();
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const CommittedTiles tiles(options);
    FsckReport report;
    for (std::size_t i = 0; i < options.directories.size(); ++i) {
      report.files.push_back(swap_file_path(options.directories[i], options.name, i));
    }
    report.resumable = true;
    report.step = tiles.commit().step;
    report.generation = tiles.generation();
    report.slots = tiles.slots();
    report.tiles = tiles.layout().tiles.size();
    report.engine = "posix";
    if (!check_tiles(tiles, report, progress)) continue;
    report.notes.push_back({.file = report.files.front(),
                            .what = "in use: its newest commit was checked, and nothing else"});
    report.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return report;
  }
  throw Error(ErrorCode::busy, "a process commits steps to " +
                                   options.directories.front().string() +
                                   " faster than they can be checked; interrupt it first");
}

}  // namespace spillway::nvme_swap
