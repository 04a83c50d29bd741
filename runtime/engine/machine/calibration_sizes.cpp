#include "runtime/engine/machine/calibration_sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "nvme_swap/format.hpp"
#include "runtime/base/error.hpp"

namespace spillway::engine {
namespace {

constexpr std::size_t kTiles = 4;
constexpr Bytes kTileBytes{std::uint64_t{16} << 20};
constexpr std::uint32_t kSlots = 2;
/// More than most last caches hold. One tile was measured at 193 GB/s where the update of a step,
/// which goes through all of the state, was far slower.
constexpr Bytes kBeyondCaches{std::uint64_t{256} << 20};

[[noreturn]] void refuse_memory(std::string_view what, Bytes needed, std::string_view memory,
                                Bytes budget) {
  throw Error(ErrorCode::does_not_fit,
              fmt::format("does not fit: to measure {} takes at least {} of {} memory and the "
                          "budget is {}. What would make it fit: --{}-memory of at least {}",
                          what, format_bytes(needed), memory, format_bytes(budget), memory,
                          format_bytes(needed)));
}

/// What a store of four such tiles takes of all its drives together. Two of them may be one.
Bytes disk_bytes(Bytes tile, std::size_t files) {
  const nvme_swap::StoreMap map =
      nvme_swap::plan_store(std::vector(kTiles, tile), kSlots, files, nvme_swap::StoreId{});
  return Bytes{std::accumulate(map.file_bytes.begin(), map.file_bytes.end(), std::uint64_t{0})};
}

}  // namespace

Bytes update_bytes(const cpu_adam::Kernel& kernel, ElementCount count) {
  const std::uint64_t narrow = size_of(kernel.gradient_dtype) + size_of(kernel.parameter_dtype);
  return Bytes{cpu_adam::make_layout(kernel.format, count.value()).bytes + count.value() * narrow};
}

ElementCount timed_parameters(const cpu_adam::Kernel& kernel, ElementCount tile,
                              ElementCount model) {
  const Bytes leaf = update_bytes(kernel, ElementCount{kLeafParameters});
  const ElementCount enough{kBeyondCaches.value() / leaf.value() * kLeafParameters};
  return std::max(tile, std::min(model, enough));
}

ElementCount update_parameters(const cpu_adam::Kernel& kernel, ElementCount wanted,
                               ElementCount least, Bytes room) {
  least = std::min(least, wanted);
  ElementCount count = wanted;
  while (count > least && update_bytes(kernel, count) > room) {
    const ElementCount half{round_up(count.value() / 2, kLeafParameters)};
    count = half < count ? std::max(half, least) : least;
  }
  const Bytes needed = update_bytes(kernel, count);
  if (needed > room) refuse_memory("the update", needed, "host", room);
  return count;
}

Bytes link_bytes(Bytes wanted, Bytes device, Bytes host) {
  const Bytes most{std::min(device, host).value() / 2 / kPageBytes * kPageBytes};
  if (wanted <= most) return wanted;
  const Bytes least = std::min(wanted, Bytes{kPageBytes});
  if (most < least) {
    const bool of_device = device < host;
    refuse_memory("copies to the device and back", least * 2U, of_device ? "device" : "host",
                  of_device ? device : host);
  }
  return most;
}

std::vector<DriveSpace> spaces_of(std::span<const std::filesystem::path> directories) {
  std::vector<DriveSpace> drives;
  for (const std::filesystem::path& directory : directories) {
    drives.push_back({directory, Bytes{std::filesystem::space(directory).available}});
  }
  return drives;
}

std::vector<Bytes> disk_tiles(Bytes room, std::span<const DriveSpace> drives) {
  SPILLWAY_ASSERT(!drives.empty());
  const DriveSpace& smallest = *std::ranges::min_element(drives, {}, &DriveSpace::free);
  const Bytes least{kPageBytes};
  const auto too_large = [&](Bytes tile) {
    return tile * kTiles > room || disk_bytes(tile, drives.size()) > smallest.free;
  };
  Bytes tile = kTileBytes;
  while (tile > least && too_large(tile)) tile = tile / 2;
  if (tile * kTiles > room) refuse_memory("the disk", tile * kTiles, "host", room);
  const Bytes needed = disk_bytes(tile, drives.size());
  check(
      needed <= smallest.free, ErrorCode::does_not_fit,
      fmt::format("does not fit: to measure the disk takes at least {} and {} has {} free. What "
                  "would make it fit: free space there, or --nvme of another directory",
                  format_bytes(needed), smallest.directory.string(), format_bytes(smallest.free)));
  return std::vector(kTiles, tile);
}

}  // namespace spillway::engine
