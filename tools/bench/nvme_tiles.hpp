// Loads in the shape of a step: whole tiles of a TileStore, read, written, or each read and written
// back. For `spillway bench nvme` and `spillway bench swap`.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nvme_swap/drive_load.hpp"
#include "nvme_swap/tile_store.hpp"

namespace spillway::bench {

inline constexpr double kSecondsPerDay = 86400;

/// A loop waits so long for the disk at most, and then looks again.
inline constexpr std::chrono::milliseconds kDiskWait{1000};

struct TileLoadOptions {
  std::vector<std::filesystem::path> directories;
  nvme_swap::EngineKind engine = nvme_swap::EngineKind::automatic;
  nvme_swap::UringOptions uring{};
  std::size_t queue_depth = 32;
  Bytes transfer_bytes{4 << 20};
  Bytes tile_bytes{24 << 20};  ///< 2 Mi parameters in fp32 state
  std::size_t tiles = 20;
  Bytes companion_bytes{};  ///< of another tile for each, behind all of these; 0: none
  std::size_t buffers = 6;  ///< tiles in memory at once
};

/// Page-aligned memory of one tile for each buffer, in huge pages where the system gives them.
class TileBuffers {
 public:
  TileBuffers(std::size_t count, Bytes bytes);
  [[nodiscard]] std::span<std::byte> all() { return {data_.get(), count_ * bytes_}; }
  [[nodiscard]] std::span<std::byte> operator[](std::size_t index) {
    return all().subspan(index * bytes_, bytes_);
  }
  [[nodiscard]] std::size_t size() const { return count_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::size_t count_;
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

struct TileLoadResult {
  nvme_swap::LoadResult load;  ///< `data_seconds`: checksums made and verified
  double commit_seconds = 0;   ///< the mean of the commits, which are not in `load.seconds`
};

/// Directories that go with the object if they are empty by then.
class ScratchDirectories {
 public:
  explicit ScratchDirectories(const std::vector<std::filesystem::path>& paths) : paths_(paths) {}
  ~ScratchDirectories();
  ScratchDirectories(const ScratchDirectories&) = delete;
  ScratchDirectories& operator=(const ScratchDirectories&) = delete;

 private:
  std::vector<std::filesystem::path> paths_;
};

/// A store of tiles that goes with this object.
class TileLoad {
 public:
  explicit TileLoad(const TileLoadOptions& options);

  /// Goes over the tiles again and again for `duration`, but at least once over all of them;
  /// commits after every round of writes. Verifies every tile that it reads.
  [[nodiscard]] TileLoadResult run(nvme_swap::AccessPattern pattern,
                                   std::chrono::milliseconds duration);

  [[nodiscard]] nvme_swap::TileStore& store() { return *store_; }
  [[nodiscard]] TileBuffers& buffers() { return buffers_; }
  [[nodiscard]] const TileLoadOptions& options() const { return options_; }
  [[nodiscard]] WakeSignal& wake() { return wake_; }
  /// Commits what was written.
  void commit();

 private:
  struct Round;
  void write_companions();
  void run_round(nvme_swap::AccessPattern pattern, TileLoadResult& result);
  std::uint64_t checksum(std::span<const std::byte> data, TileLoadResult& result) const;

  TileLoadOptions options_;
  ScratchDirectories directories_;
  WakeSignal wake_;
  TileBuffers buffers_;
  std::unique_ptr<nvme_swap::TileStore> store_;
  std::uint64_t commits_ = 0;
};

}  // namespace spillway::bench
