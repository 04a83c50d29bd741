// A load on a drive: blocks read from, written to or both from and to one scratch file, through the
// engine and the transfer queue that tiles take. For calibration and benchmarks. One thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nvme_swap/io_engine.hpp"
#include "runtime/base/units.hpp"

namespace spillway::nvme_swap {

/// A preallocated file without a name, gone with its owner whatever happens. Every page records its
/// own place and how often it was written, so that a read detects a page that is lost, stale or
/// misplaced.
class DriveFile {
 public:
  /// Writes every page once, with no more than `buffer` in flight, or a block of 1 MiB. `bytes`: a
  /// multiple of two MiB. Throws `Error{does_not_fit}` if the filesystem of `directory` lacks the
  /// space.
  DriveFile(const std::filesystem::path& directory, Bytes bytes, Bytes buffer = 16_MiB);
  DriveFile(const DriveFile&) = delete;
  DriveFile& operator=(const DriveFile&) = delete;
  ~DriveFile();

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] Bytes bytes() const { return Bytes{versions_.size() * kPageBytes}; }
  /// Whether the filesystem has O_DIRECT.
  [[nodiscard]] bool direct() const { return direct_; }
  /// Returns a path by which another process of this user can open the file while this one holds
  /// it.
  [[nodiscard]] std::string path_for_others() const;

  /// Puts into `block` what the pages at `offset` shall hold next.
  void stamp(std::span<std::byte> block, std::uint64_t offset);
  /// Throws `Error{corrupt_data}` unless `block` is what the pages at `offset` were given last.
  void verify(std::span<const std::byte> block, std::uint64_t offset) const;
  /// Writes every page anew, after another process wrote the file.
  void refill();

 private:
  int descriptor_;
  bool direct_ = false;
  std::size_t refill_depth_;
  std::vector<std::uint64_t> versions_;  // of each page
  std::vector<std::byte> pattern_;       // what follows the stamp in every page
};

enum class AccessPattern : std::uint8_t {
  read,
  write,
  mixed,  ///< one block read from the first half for each written to the second
};
[[nodiscard]] std::string_view name_of(AccessPattern pattern);

struct LoadOptions {
  AccessPattern pattern = AccessPattern::read;
  EngineKind engine = EngineKind::automatic;
  UringOptions uring{};
  std::size_t queue_depth = 32;
  Bytes block{1 << 20};  ///< divides half of the file
  /// No block is started after this long, but one in each slot of the queue.
  std::chrono::milliseconds duration{500};
  bool verify = true;  ///< what is read, while it is read
  bool registered_buffers = true;
  /// Puts an adaptor around the engine; for tests.
  std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>, const EngineOptions&)> adapt{};
};

struct LoadResult {
  std::string_view engine;  ///< that ran
  EngineAbilities abilities{};
  Bytes read{};
  Bytes written{};
  double seconds = 0;
  double cpu_seconds = 0;   ///< of all threads, for moving the data
  double data_seconds = 0;  ///< for making and checking its content; not in `cpu_seconds`

  [[nodiscard]] double gigabytes_per_second() const {
    return static_cast<double>((read + written).value()) / 1e9 / seconds;
  }
  [[nodiscard]] double cpu_milliseconds_per_gibibyte() const {
    return cpu_seconds * 1e3 / (static_cast<double>((read + written).value()) / (1U << 30));
  }
};

/// Throws the first failure of an operation, with its place; `Error{corrupt_data}` for wrong data.
[[nodiscard]] LoadResult run_load(DriveFile& file, const LoadOptions& options);

/// Reads all of the file and checks it.
void verify_all(DriveFile& file, EngineKind engine);

}  // namespace spillway::nvme_swap
