#include "nvme_swap/fsck.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <utility>

#include "nvme_swap/detail/aligned_buffer.hpp"
#include "nvme_swap/detail/store_files.hpp"
#include "nvme_swap/detail/store_recovery.hpp"
#include "runtime/base/elapsed.hpp"
#include "runtime/base/error.hpp"

namespace spillway::nvme_swap {
namespace {

constexpr std::size_t kTilesInFlight = 3;
constexpr std::string_view kFirstFileEnd = "-0.swap";

class Check {
 public:
  Check(const StoreOptions& options, const FsckProgress& progress)
      : options_(options), progress_(progress) {}

  FsckReport run() {
    const auto begin = std::chrono::steady_clock::now();
    if (check_headers() && check_records()) check_tiles();
    report_.seconds = seconds_since(begin);
    return std::move(report_);
  }

 private:
  /// What `work` throws becomes damage of `file`, except that somebody else uses it, or that this
  /// process may not open it: that tells nothing of the file.
  template <class Work>
  bool guarded(const std::filesystem::path& file, const Work& work) {
    try {
      work();
      return true;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::busy || may_not_write(error)) throw;
      report_.damage.push_back({.file = file, .what = error.what()});
      return false;
    }
  }

  /// Every file by itself, so that each damaged one is named; then whether they belong together.
  bool check_headers() {
    bool sound = true;
    for (std::size_t i = 0; i < options_.directories.size(); ++i) {
      const auto path = swap_file_path(options_.directories[i], options_.name, i);
      report_.files.push_back(path);
      sound &= guarded(path, [&] { check_header(path); });
    }
    if (!sound) return false;
    return guarded(report_.files.front(), [&] {
      files_ = detail::open_files(options_);
      report_.slots = files_.map.slots;
      report_.tiles = files_.map.tiles.size();
    });
  }

  void check_header(const std::filesystem::path& path) {
    const detail::SwapFile file = detail::SwapFile::open_existing(path, options_.lock_patience);
    detail::check_head(file);
    struct stat status {};
    if (::fstat(file.descriptor(), &status) == 0 && status.st_blocks * 512 < status.st_size) {
      report_.notes.push_back(
          {.file = path,
           .what = "has holes, as a copy may have: training on could run out of disk space"});
    }
  }

  bool check_records() {
    const detail::SwapFile& first = files_.files.front();
    detail::AlignedBuffer area(files_.map.record_bytes);
    std::size_t valid = 0;
    for (std::size_t i = 0; i < files_.map.record_offset.size(); ++i) {
      static_cast<void>(first.read_at(files_.map.record_offset[i], area.bytes()));
      std::string reason;
      if (open_record(files_.map, area.bytes(), reason)) {
        ++valid;
        continue;
      }
      report_.damage.push_back(
          {.file = first.path(),
           .what = fmt::format("commit record {} (at offset {}) cannot be used: {}", i,
                               files_.map.record_offset[i], reason)});
    }
    if (valid == 0) return false;
    recovered_ = detail::recover(files_.map, first);
    report_.generation = recovered_.generation;
    report_.resumable = true;
    if (recovered_.commit) {
      report_.step = recovered_.commit->step;
    } else {
      report_.notes.push_back({.file = first.path(), .what = "no step was committed yet"});
    }
    return true;
  }

  void check_tiles() {
    std::vector<TileIndex> tiles;
    Bytes total{};
    Bytes largest{};
    for (std::uint32_t i = 0; i < recovered_.tiles.size(); ++i) {
      if (recovered_.tiles[i].slot == kNoSlot) continue;
      const Bytes bytes{files_.map.tiles[i].bytes};
      tiles.emplace_back(i);
      total += bytes;
      largest = std::max(largest, bytes);
    }
    if (!recovered_.commit) return;
    files_.files.clear();  // unlocks them for the store
    const auto store = TileStore::open(options_);
    report_.engine = store->engine_name();
    std::vector<detail::AlignedBuffer> buffers;
    for (std::size_t i = 0; i < kTilesInFlight; ++i) buffers.emplace_back(largest.value());
    std::array<Ticket, kTilesInFlight> tickets;
    for (std::size_t i = 0; i < tiles.size() + kTilesInFlight; ++i) {
      const std::size_t place = i % kTilesInFlight;
      if (i >= kTilesInFlight && i - kTilesInFlight < tiles.size()) {
        const TileIndex tile = tiles[i - kTilesInFlight];
        check_tile(*store, tile, tickets[place], buffers[place].bytes());
        if (progress_) progress_(report_.bytes_checked, total);
      }
      if (i >= tiles.size()) continue;
      const Bytes bytes{files_.map.tiles[tiles[i].value()].bytes};
      tickets[place] = store->read(tiles[i], buffers[place].bytes().first(bytes.value()));
    }
  }

  void check_tile(const TileStore& store, TileIndex tile, Ticket& ticket,
                  std::span<std::byte> buffer) {
    const TileEntry& entry = files_.map.tiles[tile.value()];
    const bool sound = guarded(report_.files[entry.file], [&] {
      ticket.wait();
      store.verify(tile, buffer.first(entry.bytes));
    });
    report_.resumable &= sound;
    ++report_.tiles_checked;
    report_.bytes_checked += Bytes{entry.bytes};
  }

  const StoreOptions& options_;
  const FsckProgress& progress_;
  FsckReport report_;
  detail::StoreFiles files_;
  detail::Recovered recovered_;
};

}  // namespace

bool may_not_write(const Error& error) {
  return error.native() == EROFS || error.native() == EACCES || error.native() == EPERM;
}

std::vector<std::string> stores_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > kFirstFileEnd.size() && name.ends_with(kFirstFileEnd)) {
      names.push_back(name.substr(0, name.size() - kFirstFileEnd.size()));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

FsckReport check_store(const StoreOptions& options, const FsckProgress& progress) {
  detail::check_options(options);
  return Check(options, progress).run();
}

}  // namespace spillway::nvme_swap
