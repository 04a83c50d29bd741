#include "runtime/engine/machine/host_rates.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "cpu_adam/traffic.hpp"
#include "cpu_adam/worker_pool.hpp"
#include "nvme_swap/tile_store.hpp"
#include "offload/host/host_backend.hpp"
#include "offload/memory.hpp"
#include "runtime/base/file.hpp"
#include "runtime/engine/machine/calibration_sizes.hpp"
#include "runtime/engine/machine/least_seconds.hpp"
#include "runtime/engine/machine/normal_numbers.hpp"
#include "runtime/engine/machine/update_bench.hpp"
#include "runtime/engine/step/update_setup.hpp"
#include "runtime/plan/placement/placement.hpp"

namespace spillway::engine {
namespace {

/// More than caches hold.
constexpr std::size_t kCopiedBytes = std::size_t{64} << 20;

}  // namespace

double measure_update(const config::TrainOptions& options, const plan::Workload& workload,
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
  const double seconds = least_seconds([&] { bench.pass(prefetch); });
  return static_cast<double>(count) *
         cpu_adam::bytes_per_parameter(kernel.format, kernel.gradient_dtype,
                                       kernel.parameter_dtype) /
         seconds;
}

double measure_copy() {
  const auto from = std::make_unique<std::byte[]>(kCopiedBytes);
  const auto to = std::make_unique<std::byte[]>(kCopiedBytes);
  const double seconds = least_seconds([&] { std::memcpy(to.get(), from.get(), kCopiedBytes); });
  return static_cast<double>(kCopiedBytes) / seconds;
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
  DiskRates rates;
  const auto write = [&](std::uint32_t i) {
    return store->write(TileIndex{i}, slice(i), checksum);
  };
  rates.write = bytes / least_seconds([&] { all(write); });
  const auto read = [&](std::uint32_t i) { return store->read(TileIndex{i}, slice(i)); };
  rates.read = bytes / least_seconds([&] { all(read); });
  return rates;
}

}  // namespace spillway::engine
