#include "nvme_swap/calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "nvme_swap/drive_load.hpp"
#include "runtime/base/error.hpp"

namespace spillway::nvme_swap {
namespace {

constexpr std::array<Bytes, 5> kTransferSizes{512_KiB, 1_MiB, 2_MiB, 4_MiB, 8_MiB};
constexpr std::array<std::size_t, 7> kDepths{1, 2, 4, 8, 16, 32, 64};
constexpr double kGoodEnough = 0.97;
constexpr Bytes kLeastFile = 2_MiB;
constexpr Bytes kLeastBuffer = 1_MiB;

class Calibration {
 public:
  explicit Calibration(const CalibrationOptions& options)
      : options_(options), file_(options.directory, options.file_bytes, options.buffer_bytes) {}

  DriveTuning run() {
    // Sizes first, at a depth that hides latency; then the depth, at that size.
    std::vector<LoadResult> results;
    for (const Bytes size : kTransferSizes) {
      if (!results.empty() && size.value() > bytes_in_flight()) break;
      results.push_back(load(depth_for(size), size));
    }
    const Bytes size = kTransferSizes[cheapest_good(results)];
    std::vector<std::size_t> depths;
    results.clear();
    for (const std::size_t depth : kDepths) {
      if (depth > depth_for(size, kDepths.back())) break;
      depths.push_back(depth);
      results.push_back(load(depth, size));
    }
    const std::size_t depth = depths[first_good(results)];
    const LoadResult read = load(depth, size, AccessPattern::read);
    const LoadResult write = load(depth, size, AccessPattern::write);
    const LoadResult mixed = load(depth, size);
    return {.engine = std::string(mixed.engine),
            .direct = file_.direct(),
            .queue_depth = depth,
            .transfer_bytes = size,
            .read_gbps = read.gigabytes_per_second(),
            .write_gbps = write.gigabytes_per_second(),
            .mixed_gbps = mixed.gigabytes_per_second()};
  }

 private:
  /// Bounded by memory and by the half of the file that mixed traffic reads.
  [[nodiscard]] std::uint64_t bytes_in_flight() const {
    return std::min(options_.buffer_bytes.value(), options_.file_bytes.value() / 2);
  }
  [[nodiscard]] std::size_t depth_for(Bytes size, std::size_t wanted = 32) const {
    return std::clamp<std::size_t>(bytes_in_flight() / size.value(), 1, wanted);
  }

  LoadResult load(std::size_t depth, Bytes size, AccessPattern pattern = AccessPattern::mixed) {
    return run_load(file_, {.pattern = pattern,
                            .engine = options_.engine,
                            .queue_depth = depth,
                            .block = size,
                            .duration = options_.point,
                            .verify = false});
  }

  static double good_enough(const std::vector<LoadResult>& results) {
    double best = 0;
    for (const LoadResult& result : results) best = std::max(best, result.gigabytes_per_second());
    return kGoodEnough * best;
  }

  static std::size_t first_good(const std::vector<LoadResult>& results) {
    const double least = good_enough(results);
    const auto good = std::find_if(results.begin(), results.end(), [least](const auto& result) {
      return result.gigabytes_per_second() >= least;
    });
    return static_cast<std::size_t>(good - results.begin());
  }

  static std::size_t cheapest_good(const std::vector<LoadResult>& results) {
    const double least = good_enough(results);
    std::size_t cheapest = first_good(results);
    for (std::size_t i = cheapest; i < results.size(); ++i) {
      const LoadResult& result = results[i];
      if (result.gigabytes_per_second() >= least &&
          result.cpu_milliseconds_per_gibibyte() <
              results[cheapest].cpu_milliseconds_per_gibibyte()) {
        cheapest = i;
      }
    }
    return cheapest;
  }

  const CalibrationOptions options_;
  DriveFile file_;
};

}  // namespace

DriveTuning calibrate_drive(const CalibrationOptions& options) {
  return Calibration(options).run();
}

CalibrationOptions made_to_fit(CalibrationOptions options, Bytes memory, Bytes free) {
  while (options.file_bytes > free && options.file_bytes > kLeastFile) {
    options.file_bytes = options.file_bytes / 2;
  }
  check(options.file_bytes <= free, ErrorCode::does_not_fit,
        fmt::format("to measure the drive of {} takes a file of at least {} and it has {} free; "
                    "free space, or choose another directory",
                    options.directory.string(), format_bytes(options.file_bytes),
                    format_bytes(free)));
  options.buffer_bytes = std::min(options.buffer_bytes, memory);
  check(options.buffer_bytes >= kLeastBuffer, ErrorCode::does_not_fit,
        fmt::format("to measure the drive of {} takes at least {} of memory and the budget is {}; "
                    "raise it (--host-memory)",
                    options.directory.string(), format_bytes(kLeastBuffer), format_bytes(memory)));
  return options;
}

std::vector<double> stripe_weights(std::span<const DriveTuning> drives) {
  std::vector<double> weights;
  weights.reserve(drives.size());
  for (const DriveTuning& drive : drives) weights.push_back(drive.mixed_gbps);
  return weights;
}

}  // namespace spillway::nvme_swap
