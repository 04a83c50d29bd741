// The check of one commit without a lock, from what is on disk: of a store that a process is using
// the newest, of one among those of many ranks the one that all of them have.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "nvme_swap/committed_tiles.hpp"
#include "nvme_swap/detail/aligned_buffer.hpp"
#include "nvme_swap/format.hpp"
#include "nvme_swap/fsck.hpp"
#include "runtime/base/elapsed.hpp"
#include "runtime/base/error.hpp"

namespace spillway::nvme_swap {
namespace {

using Clock = std::chrono::steady_clock;

FsckReport begin_report(const StoreOptions& options, const CommittedTiles& tiles) {
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
  return report;
}

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
  const Clock::time_point begin = Clock::now();
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const CommittedTiles tiles(options);
    FsckReport report = begin_report(options, tiles);
    report.in_use = true;
    if (!check_tiles(tiles, report, progress)) continue;
    report.notes.push_back({.file = report.files.front(),
                            .what = "checked without a lock: its newest commit, and nothing else"});
    report.seconds = seconds_since(begin);
    return report;
  }
  throw Error(ErrorCode::busy, "a process commits steps to " +
                                   options.directories.front().string() +
                                   " faster than they can be checked; interrupt it first");
}

FsckReport check_commit(const StoreOptions& options, StepIndex at, const FsckProgress& progress) {
  const Clock::time_point begin = Clock::now();
  CommittedTiles tiles(options);
  FsckReport report = begin_report(options, tiles);
  const auto find = [&](std::string what) {
    report.damage.push_back({.file = report.files.front(), .what = std::move(what)});
    report.resumable = false;
  };
  report.notes.push_back(
      {.file = report.files.front(),
       .what = fmt::format("its newest commit is of step {}, and another rank's of step {}, from "
                           "which a resume goes on",
                           report.step->value(), at.value())});
  report.step = at;
  try {
    tiles.take(at);
    if (!check_tiles(tiles, report, progress)) {
      find(fmt::format("the tiles of step {} are not whole", at.value()));
    }
  } catch (const Error& error) {
    find(error.what());
  }
  report.seconds = seconds_since(begin);
  return report;
}

}  // namespace spillway::nvme_swap
