#include "runtime/engine/machine/host_rates.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "cpu_adam/traffic.hpp"
#include "cpu_adam/worker_pool.hpp"
#include "nvme_swap/tile_store.hpp"
#include "offload/host/host_backend.hpp"
#include "offload/memory.hpp"
#include "runtime/base/elapsed.hpp"
#include "runtime/base/file.hpp"
#include "runtime/engine/machine/calibration_sizes.hpp"
#include "runtime/engine/machine/normal_numbers.hpp"
#include "runtime/engine/machine/timing.hpp"
#include "runtime/engine/machine/update_bench.hpp"
#include "runtime/engine/step/update_setup.hpp"
#include "runtime/plan/placement/placement.hpp"

namespace spillway::engine {
namespace {

/// More than caches hold.
constexpr std::size_t kCopiedBytes = std::size_t{64} << 20;
/// Long enough that it is what a drive sustains, rather than what its cache takes at once.
constexpr std::chrono::milliseconds kDiskTime{100};

/// Returns the seconds that all threads of the process have spent on processors.
double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

MeasuredRate measure_update(const config::TrainOptions& options, const plan::Workload& workload,
                            std::size_t prefetch, Bytes room) {
  const cpu_adam::Kernel& kernel = update_kernel(options, workload);
  const ElementCount tile =
      std::min(ElementCount{options.tile_parameters}, plan::largest_block(workload));
  ElementCount model;
  for (const plan::BlockShape& block : workload.blocks) model += block.parameters;
  const std::size_t count = update_parameters(kernel, timed_parameters(kernel, tile, model),
                                              ElementCount{kLeafParameters}, room)
                                .value();
  cpu_adam::WorkerPool workers({.threads = options.threads});
  UpdateBench bench(kernel, count, options.adam, workers);
  const Seconds seconds = timed_team([&] { bench.pass(prefetch); });
  const double bytes =
      static_cast<double>(count) *
      cpu_adam::bytes_per_parameter(kernel.format, kernel.gradient_dtype, kernel.parameter_dtype);
  return {.usual = bytes / seconds.usual, .pace = seconds.pace()};
}

double measure_copy() {
  const auto from = std::make_unique<std::byte[]>(kCopiedBytes);
  const auto to = std::make_unique<std::byte[]>(kCopiedBytes);
  const Seconds seconds = timed([&] { std::memcpy(to.get(), from.get(), kCopiedBytes); });
  return static_cast<double>(kCopiedBytes) / seconds.usual;
}

double measure_wake() {
  const auto backend = offload::make_host_backend({});
  const auto stream = backend->make_stream("calibrate");
  return timed([&] {
           stream->submit([] {});
           stream->synchronize();
         })
      .usual;
}

double measure_checksums(std::size_t threads) {
  constexpr std::size_t kEach = std::size_t{256} << 10;
  cpu_adam::WorkerPool workers({.threads = threads});
  const std::vector<std::byte> bytes(workers.threads() * kEach, std::byte{1});
  std::vector<std::uint64_t> sums(workers.threads());
  const Seconds seconds = timed_team([&] {
    workers
        .submit([&] {
          workers.parallel_for(sums.size(), 1, [&](std::size_t first, std::size_t last) {
            for (std::size_t i = first; i < last; ++i) {
              sums[i] = nvme_swap::checksum_of(std::span(bytes).subspan(i * kEach, kEach));
            }
          });
        })
        .wait();
  });
  return static_cast<double>(bytes.size()) / seconds.usual;
}

DiskRates measure_disks(const config::TrainOptions& options,
                        std::span<const std::filesystem::path> directories,
                        const DriveTunings& drives, Bytes room) {
  nvme_swap::StoreOptions store_options;
  store_options.directories.assign(directories.begin(), directories.end());
  store_options.name = "calibration";
  store_options.engine = options.io_engine;
  store_options.disk_gigabytes_per_second = options.disk_gbps;
  store_options.remove_on_close = true;
  tune_store(drives, store_options);
  MadeDirectories made;  // which are not there yet when a run is only planned
  for (const auto& directory : store_options.directories) made.make(directory);
  const std::vector<Bytes> tiles = disk_tiles(room, spaces_of(store_options.directories));
  const Bytes tile = tiles.front();
  const Bytes all_tiles = tile * tiles.size();
  const auto backend =
      offload::make_host_backend({.device_capacity = Bytes{}, .pinned_capacity = all_tiles});
  const offload::PinnedMemory buffer(*backend, all_tiles);
  const auto store = nvme_swap::TileStore::create(store_options, {.tiles = tiles});
  const auto slice = [&](std::uint32_t i) {
    return buffer.host().subspan(i * tile.value(), tile.value());
  };
  const NormalNumbers numbers(options);
  for (std::uint32_t i = 0; i < tiles.size(); ++i) numbers.fill(slice(i));
  const std::uint64_t checksum = nvme_swap::checksum_of(slice(0));  // they are all alike
  const auto all = [&](const auto& start) {
    std::vector<Ticket> tickets;
    for (std::uint32_t i = 0; i < tiles.size(); ++i) tickets.push_back(start(i));
    for (Ticket& ticket : tickets) ticket.wait();
  };
  const auto bytes = static_cast<double>(buffer.size().value());
  const auto write = [&](std::uint32_t i) {
    return store->write(TileIndex{i}, slice(i), checksum);
  };
  const auto read = [&](std::uint32_t i) { return store->read(TileIndex{i}, slice(i)); };
  const auto either = [&](std::uint32_t i) { return i % 2 == 0 ? read(i) : write(i); };
  const Seconds writes = timed([&] { all(write); }, kDiskTime);
  const double processor = processor_seconds();
  const auto begin = std::chrono::steady_clock::now();
  const Seconds reads = timed([&] { all(read); }, kDiskTime);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  const double cores = (processor_seconds() - processor) / taken.count();
  const Seconds both = timed([&] { all(either); }, kDiskTime);
  std::uint64_t step = 0;
  const auto commit = [&] { store->commit({.step = StepIndex{++step}}).wait(); };
  std::vector<double> commits;
  for (int i = 0; i < 5; ++i) {
    all(write);
    const auto written = std::chrono::steady_clock::now();
    commit();
    commits.push_back(seconds_since(written));
  }
  std::ranges::nth_element(commits, commits.begin() + 2);
  Seconds sum = reads;
  sum += writes;
  sum += both;
  return {.read = bytes / reads.usual,
          .write = bytes / writes.usual,
          .combined = bytes / both.usual,
          .commit_seconds = commits[2],
          .pace = sum.pace(),
          .cores = cores};
}

}  // namespace spillway::engine
