#include "nvme_swap/calibration.hpp"

#include <algorithm>
#include <array>

#include "nvme_swap/drive_load.hpp"

namespace spillway::nvme_swap {
namespace {

constexpr std::array<Bytes, 5> kTransferSizes{256_KiB, 512_KiB, 1_MiB, 2_MiB, 4_MiB};
constexpr std::array<std::size_t, 6> kDepths{2, 4, 8, 16, 32, 64};
constexpr double kGoodEnough = 0.97;

class Calibration {
 public:
  explicit Calibration(const CalibrationOptions& options)
      : options_(options), file_(options.directory, options.file_bytes) {}

  DriveTuning run() {
    // Sizes first, at a depth that hides latency; then the depth, at that size.
    std::vector<double> rates;
    rates.reserve(kTransferSizes.size() + kDepths.size());
    for (const Bytes size : kTransferSizes) rates.push_back(rate(depth_for(size), size));
    const Bytes size = kTransferSizes[first_good(rates)];
    std::vector<std::size_t> depths;
    rates.clear();
    for (const std::size_t depth : kDepths) {
      if (depth > depth_for(size, kDepths.back())) break;
      depths.push_back(depth);
      rates.push_back(rate(depth, size));
    }
    const std::size_t depth = depths[first_good(rates)];
    DriveTuning tuning{.direct = file_.direct(), .queue_depth = depth, .transfer_bytes = size};
    tuning.read_gbps = rate(depth, size, AccessPattern::read);
    tuning.write_gbps = rate(depth, size, AccessPattern::write);
    tuning.mixed_gbps = rate(depth, size);
    tuning.engine = engine_;
    return tuning;
  }

 private:
  /// Bounded by memory and by the half of the file that mixed traffic reads.
  [[nodiscard]] std::size_t depth_for(Bytes size, std::size_t wanted = 32) const {
    const std::uint64_t bytes =
        std::min(options_.buffer_bytes.value(), options_.file_bytes.value() / 2);
    return std::clamp<std::size_t>(bytes / size.value(), 1, wanted);
  }

  double rate(std::size_t depth, Bytes size, AccessPattern pattern = AccessPattern::mixed) {
    const LoadResult result = run_load(file_, {.pattern = pattern,
                                               .engine = options_.engine,
                                               .queue_depth = depth,
                                               .block = size,
                                               .duration = options_.point,
                                               .verify = false});
    engine_ = result.engine;
    return result.gigabytes_per_second();
  }

  static std::size_t first_good(const std::vector<double>& rates) {
    const double best = *std::max_element(rates.begin(), rates.end());
    const auto good = std::find_if(rates.begin(), rates.end(),
                                   [best](double rate) { return rate >= kGoodEnough * best; });
    return static_cast<std::size_t>(good - rates.begin());
  }

  const CalibrationOptions options_;
  DriveFile file_;
  std::string engine_;
};

}  // namespace

DriveTuning calibrate_drive(const CalibrationOptions& options) {
  return Calibration(options).run();
}

std::vector<double> stripe_weights(std::span<const DriveTuning> drives) {
  std::vector<double> weights;
  weights.reserve(drives.size());
  for (const DriveTuning& drive : drives) weights.push_back(drive.mixed_gbps);
  return weights;
}

}  // namespace spillway::nvme_swap
