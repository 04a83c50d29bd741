#include "runtime/engine/machine/calibrate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "nvme_swap/tile_store.hpp"
#include "runtime/base/file.hpp"
#include "runtime/engine/machine/calibration_sizes.hpp"
#include "runtime/engine/machine/device_rates.hpp"
#include "runtime/engine/machine/host_rates.hpp"
#include "runtime/engine/machine/other_load.hpp"
#include "runtime/engine/machine/update_bench.hpp"
#include "runtime/engine/step/update_setup.hpp"

namespace spillway::engine {
namespace {

/// From here on state is too large for caches, and a run long enough for a tenth of a second.
constexpr std::uint64_t kTunedParameters = std::uint64_t{32} << 20;
/// From here on the two seconds that a drive takes are worth it.
constexpr Bytes kTunedState{std::uint64_t{1} << 30};

/// Host memory for buffers. Without a GPU it is one with the device's, which is not in use yet.
Bytes room_of(const CalibrationRequest& request) {
  const plan::Budgets& budgets = request.budgets;
  const bool one_memory = request.options.device != config::DeviceKind::cuda;
  return one_memory ? budgets.device + budgets.host : budgets.host;
}

std::size_t tuned_prefetch(const CalibrationRequest& request, MachineTuning& known,
                           const std::function<void(const std::string&)>& note) {
  const std::size_t threads = request.options.threads;
  const cpu_adam::Kernel& kernel = update_kernel(request.options, request.workload);
  const Bytes room = room_of(request);
  const bool whole = update_bytes(kernel, kPrefetchParameters) <= room;
  try {
    return known.prefetch(
        kernel, threads,
        [&] { return best_prefetch(kernel, threads, prefetch_parameters(kernel, room)); },
        whole ? Keep::yes : Keep::no);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::does_not_fit) throw;
    note(fmt::format("no software prefetch, which was not measured: {}", error.what()));
    return 0;
  }
}

DriveTunings tuned_drives(const CalibrationRequest& request, MachineTuning& known,
                          const std::function<void(const std::string&)>& note) {
  const nvme_swap::EngineKind engine = request.options.io_engine;
  DriveTunings drives;
  MadeDirectories made;
  try {
    for (const auto& directory : *request.state_directories) {
      made.make(directory);
      const nvme_swap::CalibrationOptions usual{.directory = directory, .engine = engine};
      const Bytes room = room_of(request);
      const Bytes free{std::filesystem::space(directory).available};
      const bool whole = usual.buffer_bytes <= room && usual.file_bytes <= free;
      drives.push_back(known.drive(
          directory, engine,
          [&] {
            note(fmt::format("measuring what the disk of {} does best", directory.string()));
            return nvme_swap::calibrate_drive(nvme_swap::made_to_fit(usual, room, free));
          },
          whole ? Keep::yes : Keep::no));
    }
  } catch (const Error& error) {
    drives.clear();  // a run can do without: its disk may be full but for its own files
    note(fmt::format("the disk is used as it is, not measured: {}", error.what()));
  }
  return drives;
}

}  // namespace

Tuning tune(const CalibrationRequest& request, const plan::Placement& placement,
            MachineTuning& known, const std::function<void(const std::string&)>& note) {
  const config::TrainOptions& options = request.options;
  std::uint64_t parameters = 0;
  Bytes on_disk;
  for (std::size_t b = 0; b < request.workload.blocks.size(); ++b) {
    const ElementCount padded = request.workload.blocks[b].padded_parameters;
    parameters += padded.value();
    if (placement.blocks[b].state != plan::Tier::nvme) continue;
    on_disk += plan::slot_bytes(placement.format, padded);
  }
  Tuning tuning;
  if (parameters >= kTunedParameters) tuning.update_prefetch = tuned_prefetch(request, known, note);
  const bool drives = on_disk >= kTunedState && !options.disk_gbps && request.state_directories;
  if (drives) tuning.drives = tuned_drives(request, known, note);
  return tuning;
}

/// Every directory needs the space for its share: two slots of each tile, and a hundredth for
/// records and rounding.
std::vector<double> disk_weights(const DriveTunings& drives,
                                 std::span<const std::filesystem::path> directories,
                                 Bytes one_slot) {
  if (drives.empty()) return {};
  std::vector<double> weights = nvme_swap::stripe_weights(drives);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double share = 2.02 * static_cast<double>(one_slot.value()) * weights[i] / sum;
    if (share > static_cast<double>(std::filesystem::space(directories[i]).available)) return {};
  }
  return weights;
}

namespace {

/// Copies of the host backend take one core a direction.
plan::CoreShares core_shares(const config::TrainOptions& options, double disk_cores) {
  const double compute = options.compute_threads;
  const double update = options.threads;
  const double cores = std::max(compute, update);
  return {.compute = compute / cores,
          .update = update / cores,
          .copy = 1 / cores,
          .disk = std::min(1.0, disk_cores / cores)};
}

}  // namespace

plan::MachineProfile calibrate(const CalibrationRequest& request, const Tuning& tuning,
                               const std::function<void(const std::string&)>& note) {
  const OtherLoad others;
  const DeviceRates device = measure_device(request);
  const bool own_memory = device.update > 0;
  plan::MachineProfile profile;
  profile.gpu_flops = device.flops;
  profile.h2d = device.h2d;
  profile.d2h = device.d2h;
  // On the host backend everything contends for the same memory, not two copies alone.
  if (own_memory) profile.h2d_d2h_combined = device.h2d_d2h_combined;
  const MeasuredRate update =
      measure_update(request.options, request.workload, tuning.update_prefetch, room_of(request));
  profile.update = update.usual;
  profile.paces = {
      .compute = device.pace, .link = device.link_pace, .update = update.pace, .disk = {}};
  profile.gpu_update = own_memory ? device.update : profile.update;
  profile.op_overhead_seconds = kOpOverheadSeconds;
  if (!own_memory) profile.wake_seconds = measure_wake();
  double disk_cores = 0;
  if (request.state_directories) {
    const DiskRates disks =
        measure_disks(request.options, *request.state_directories, tuning.drives, room_of(request));
    profile.nvme_read = disks.read;
    profile.nvme_write = disks.write;
    profile.nvme_combined = disks.combined;
    profile.disk = {.checksum = measure_checksums(request.options.threads),
                    .commit_seconds = disks.commit_seconds};
    profile.paces.disk = disks.pace;
    disk_cores = disks.cores;
  }
  if (!own_memory) profile.cores = core_shares(request.options, disk_cores);
  if (const auto text = others.note()) note(*text);
  return profile;
}

}  // namespace spillway::engine
