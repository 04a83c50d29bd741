// What the host does in a second: the update on its cores, copies in its memory, and its drives.
// Control thread only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "runtime/base/units.hpp"
#include "runtime/config/train_options.hpp"
#include "runtime/engine/machine/machine_tuning.hpp"
#include "runtime/plan/machine_profile.hpp"
#include "runtime/plan/workload.hpp"

namespace spillway::engine {

/// Cost of issuing an op and noticing its end: a queue, a wake-up and a poll.
inline constexpr double kOpOverheadSeconds = 20e-6;

struct MeasuredRate {
  double usual = 0;
  plan::Pace pace{};
};

/// Returns the bytes of memory a second of the fused update with all its workers, measured in at
/// most `room`. `options`: resolved. Throws `Error{does_not_fit}` if the room does not suffice for
/// one leaf.
[[nodiscard]] MeasuredRate measure_update(const config::TrainOptions& options,
                                          const plan::Workload& workload, std::size_t prefetch,
                                          Bytes room);

/// Measures the bytes a second of a copy from memory to memory, as those to a device that is the
/// host's memory.
[[nodiscard]] double measure_copy();

/// Measures the seconds in which a thread wakes another, and is woken by it.
[[nodiscard]] double measure_wake();

/// Measures the bytes a second of which the workers of updates make checksums, in their caches.
[[nodiscard]] double measure_checksums(std::size_t threads);

/// Bytes a second of tile-sized transfers that pass the page cache by.
struct DiskRates {
  double read = 0;
  double write = 0;
  double combined = 0;        ///< of both while both work
  double commit_seconds = 0;  ///< of a commit of some tiles
  plan::Pace pace{};
  double cores = 0;  ///< that reads or writes keep busy
};

/// Measures the drives of `directories` together, through a store of tiles that is removed at the
/// end. Directories that are not there are made, and removed too. Throws `Error{does_not_fit}` if
/// `room` in memory or the space on a drive does not suffice for one page.
[[nodiscard]] DiskRates measure_disks(const config::TrainOptions& options,
                                      std::span<const std::filesystem::path> directories,
                                      const DriveTunings& drives, Bytes room);

}  // namespace spillway::engine
