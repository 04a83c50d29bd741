#include "tools/bench/nvme_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>

#include "nvme_swap/calibration.hpp"
#include "nvme_swap/drive_load.hpp"
#include "nvme_swap/format.hpp"
#include "runtime/base/error.hpp"
#include "tools/bench/median.hpp"
#include "tools/bench/nvme_fio.hpp"
#include "tools/bench/nvme_tiles.hpp"

namespace spillway::bench {
namespace {

using nlohmann::ordered_json;
using nvme_swap::AccessPattern;
using nvme_swap::EngineKind;
using nvme_swap::LoadResult;

constexpr std::array kPatterns{AccessPattern::read, AccessPattern::write, AccessPattern::mixed};

/// Where an engine was fastest.
struct Best {
  EngineKind engine = EngineKind::uring;
  std::size_t depth = 0;
  Bytes block{};
  double rate = 0;
};

ordered_json to_json(const LoadResult& result) {
  return {{"gigabytes_per_second", result.gigabytes_per_second()},
          {"cpu_ms_per_gib", result.cpu_milliseconds_per_gibibyte()},
          {"bytes_read", result.read.value()},
          {"bytes_written", result.written.value()},
          {"seconds", result.seconds},
          {"registered_buffers", result.abilities.registered_buffers},
          {"submission_thread", result.abilities.submission_thread},
          {"completion_polling", result.abilities.completion_polling}};
}

class NvmeBench {
 public:
  NvmeBench(const NvmeBenchOptions& options, const NvmeBenchRow& row)
      : options_(options), row_(row) {
    for (const std::string& name : options.engines) {
      const EngineKind kind = nvme_swap::parse_engine(name);
      // Refuses an engine that cannot run here before anything is measured.
      engines_.emplace_back(kind, nvme_swap::make_engine(kind, {.files = {}})->name());
    }
    check(!engines_.empty() && !options.depths.empty() && !options.blocks.empty(),
          ErrorCode::invalid_argument, "the benchmark needs an engine, a depth and a block size");
    if (options.compare_fio) {
      version_ = fio_version();
      check(version_.has_value(), ErrorCode::not_supported,
            "--compare fio: fio is not installed (apt-get install fio)");
    }
  }

  ordered_json run() {
    document_ = {{"benchmark", "nvme"},
                 {"directory", std::filesystem::absolute(options_.directory).string()},
                 {"size", options_.size.value()}};
    {
      nvme_swap::DriveFile file(options_.directory, options_.size);
      written_ += file.bytes();
      document_["direct_io"] = file.direct();
      sweep(file);
      if (version_) compare(file);
    }
    tiles();
    tune();
    summarize();
    return std::move(document_);
  }

 private:
  LoadResult point(nvme_swap::DriveFile& file, EngineKind engine, AccessPattern pattern,
                   std::size_t depth, Bytes block, std::chrono::milliseconds duration) {
    LoadResult result = nvme_swap::run_load(file, {.pattern = pattern,
                                                   .engine = engine,
                                                   .uring = options_.uring,
                                                   .queue_depth = depth,
                                                   .block = block,
                                                   .duration = duration});
    written_ += result.written;
    return result;
  }

  void report(ordered_json row, const char* list) {
    if (row_) row_(row);
    document_[list].push_back(std::move(row));
  }

  void sweep(nvme_swap::DriveFile& file) {
    document_["sequential"] = ordered_json::array();
    for (const auto& [kind, name] : engines_) {
      for (const AccessPattern pattern : kPatterns) {
        for (const Bytes block : options_.blocks) {
          for (const std::size_t depth : options_.depths) {
            const LoadResult result = point(file, kind, pattern, depth, block, options_.point);
            const double rate = result.gigabytes_per_second();
            Best& best = best_[pattern];
            if (rate > best.rate)
              best = {.engine = kind, .depth = depth, .block = block, .rate = rate};
            ordered_json row{{"shape", "sequential"},
                             {"engine", name},
                             {"pattern", nvme_swap::name_of(pattern)},
                             {"depth", depth},
                             {"block", block.value()}};
            row.update(to_json(result));
            report(std::move(row), "sequential");
          }
        }
      }
      nvme_swap::verify_all(file, kind);
    }
  }

  /// Medians of the rounds by depth, and the best of them.
  struct Series {
    std::map<std::size_t, std::vector<double>> rates{};
    std::map<std::size_t, std::vector<double>> cpu{};

    void add(std::size_t depth, double rate, double cpu_milliseconds) {
      rates[depth].push_back(rate);
      cpu[depth].push_back(cpu_milliseconds);
    }
    [[nodiscard]] std::size_t best_depth() const {
      return std::max_element(rates.begin(), rates.end(),
                              [](const auto& a, const auto& b) {
                                return median_of(a.second) < median_of(b.second);
                              })
          ->first;
    }
  };

  /// Our engine and fio take turns at the same depths, so that both see the same weather.
  void compare(nvme_swap::DriveFile& file) {
    document_["fio"] = ordered_json::array();
    const auto duration = 3 * options_.point;
    for (const AccessPattern pattern : kPatterns) {
      const Best& best = best_[pattern];
      Series ours;
      Series theirs;
      for (int round = 0; round < options_.rounds; ++round) {
        for (const std::size_t depth : fio_depths()) {
          const LoadResult own = point(file, best.engine, pattern, depth, best.block, duration);
          ours.add(depth, own.gigabytes_per_second(), own.cpu_milliseconds_per_gibibyte());
          const FioResult fio = run_fio(file, pattern, depth, best.block, duration);
          theirs.add(depth, fio.gigabytes_per_second, fio.cpu_milliseconds_per_gibibyte);
          if (pattern != AccessPattern::read) file.refill();
        }
      }
      const std::size_t depth = theirs.best_depth();
      const std::size_t own_depth = ours.best_depth();
      const double own_rate = median_of(ours.rates.at(own_depth));
      const double fraction = own_rate / median_of(theirs.rates.at(depth));
      fraction_ = std::min(fraction_.value_or(fraction), fraction);
      report({{"shape", "sequential"},
              {"engine", version_.value()},
              {"pattern", nvme_swap::name_of(pattern)},
              {"depth", depth},
              {"block", best.block.value()},
              {"gigabytes_per_second", median_of(theirs.rates.at(depth))},
              {"cpu_ms_per_gib", median_of(theirs.cpu.at(depth))},
              {"spillway_gigabytes_per_second", own_rate},
              {"spillway_cpu_ms_per_gib", median_of(ours.cpu.at(own_depth))},
              {"spillway_depth", own_depth},
              {"fraction", fraction}},
             "fio");
    }
  }

  /// The two largest of the sweep: starting fio takes longer than measuring with it.
  [[nodiscard]] std::vector<std::size_t> fio_depths() const {
    std::vector<std::size_t> depths = options_.depths;
    std::sort(depths.begin(), depths.end());
    depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
    if (depths.size() > 2) depths.erase(depths.begin(), depths.end() - 2);
    return depths;
  }

  /// Through the store: slots, checksums, commits.
  void tiles() {
    document_["tiles"] = ordered_json::array();
    for (const auto& [kind, name] : engines_) {
      const Best& best = best_[AccessPattern::mixed];
      TileLoadOptions load{.directories = {options_.directory / "spillway-bench"},
                           .engine = kind,
                           .uring = options_.uring,
                           .queue_depth = best.depth,
                           .transfer_bytes = best.block};
      load.tiles = std::max<std::size_t>(options_.size.value() / 2 / load.tile_bytes.value(), 2);
      TileLoad tiles(load);
      for (const AccessPattern pattern : kPatterns) {
        const TileLoadResult result = tiles.run(pattern, 2 * options_.point);
        written_ += result.load.written;
        ordered_json row{{"shape", "tile"},
                         {"engine", name},
                         {"pattern", nvme_swap::name_of(pattern)},
                         {"depth", load.queue_depth},
                         {"block", load.transfer_bytes.value()}};
        row.update(to_json(result.load));
        row["tile_bytes"] = load.tile_bytes.value();
        row["commit_ms"] = result.commit_seconds * 1e3;
        row["checksum_ms_per_gib"] =
            result.load.data_seconds * 1e3 /
            (static_cast<double>((result.load.read + result.load.written).value()) / (1U << 30));
        report(std::move(row), "tiles");
      }
    }
  }

  /// What `train` would choose for this drive.
  void tune() {
    const auto bytes = Bytes{std::min<std::uint64_t>(options_.size.value(), 256U << 20)};
    const nvme_swap::DriveTuning tuning =
        nvme_swap::calibrate_drive({.directory = options_.directory,
                                    .engine = engines_.front().first,
                                    .file_bytes = bytes,
                                    .point = options_.point / 2,
                                    .buffer_bytes = Bytes{bytes.value() / 4}});
    document_["tuning"] = {{"engine", tuning.engine},
                           {"queue_depth", tuning.queue_depth},
                           {"transfer_bytes", tuning.transfer_bytes.value()},
                           {"read_gbps", tuning.read_gbps},
                           {"write_gbps", tuning.write_gbps},
                           {"mixed_gbps", tuning.mixed_gbps}};
  }

  void summarize() {
    for (const AccessPattern pattern : kPatterns) {
      const Best& best = best_[pattern];
      document_["best"][std::string(nvme_swap::name_of(pattern))] = {
          {"gigabytes_per_second", best.rate},
          {"depth", best.depth},
          {"block", best.block.value()}};
    }
    document_["fraction_of_limit"] = fraction_ ? ordered_json(*fraction_) : ordered_json(nullptr);
    document_["limit"] = version_.value_or("none: give --compare fio");
    document_["verified"] = true;
    document_["wear"] = {{"bytes_written", written_.value()},
                         {"terabytes_a_day_at_full_rate",
                          best_[AccessPattern::mixed].rate / 2 * kSecondsPerDay / 1e3}};
  }

  const NvmeBenchOptions& options_;
  const NvmeBenchRow& row_;
  std::vector<std::pair<EngineKind, std::string>> engines_;
  std::optional<std::string> version_;
  std::map<AccessPattern, Best> best_;
  std::optional<double> fraction_;
  Bytes written_{};
  ordered_json document_;
};

}  // namespace

ordered_json bench_nvme(const NvmeBenchOptions& options, const NvmeBenchRow& row) {
  return NvmeBench(options, row).run();
}

}  // namespace spillway::bench
