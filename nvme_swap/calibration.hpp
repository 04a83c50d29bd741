// What a drive does best: queue depth, transfer size and rates, measured in about two seconds. To
// be kept in the machine profile.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "nvme_swap/io_engine.hpp"
#include "runtime/base/units.hpp"

namespace spillway::nvme_swap {

struct CalibrationOptions {
  std::filesystem::path directory;
  EngineKind engine = EngineKind::automatic;
  Bytes file_bytes{256 << 20};          ///< of the scratch file, gone when this is over
  std::chrono::milliseconds point{80};  ///< spent on each depth and size
  Bytes buffer_bytes{64 << 20};         ///< the most that may be in flight
};

/// Settings that suit a drive, with rates in bytes a nanosecond (GB/s). `StoreOptions` takes depth,
/// transfer size and engine.
struct DriveTuning {
  std::string engine{};
  bool direct = false;  ///< the filesystem has O_DIRECT
  std::size_t queue_depth = 0;
  Bytes transfer_bytes{};
  double read_gbps = 0;
  double write_gbps = 0;
  double mixed_gbps = 0;  ///< both directions together, half of it each
};

/// Finds what suits 50:50 traffic, which is what a step does to a drive: the transfer size that
/// costs the least CPU time within 3 % of the best rate, then the smallest depth within 3 % of its
/// best. Throws `Error{does_not_fit}` if the filesystem lacks the space.
[[nodiscard]] DriveTuning calibrate_drive(const CalibrationOptions& options);

/// Returns `options` with a smaller file and less in flight where `free`, of the drive, or `memory`
/// has no room for them. Throws `Error{does_not_fit}` naming what has none even for the least.
[[nodiscard]] CalibrationOptions made_to_fit(CalibrationOptions options, Bytes memory, Bytes free);

/// Returns the share of tiles that each directory takes (`StoreOptions::weights`), by mixed rate.
[[nodiscard]] std::vector<double> stripe_weights(std::span<const DriveTuning> drives);

}  // namespace spillway::nvme_swap
