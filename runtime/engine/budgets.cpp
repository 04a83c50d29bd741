#include "runtime/engine/budgets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <variant>
#include <vector>

#include "runtime/engine/compute_device.hpp"
#include "runtime/engine/planning.hpp"
#include "runtime/engine/workload.hpp"
#include "runtime/plan/choose.hpp"

namespace spillway::engine {
namespace {

using plan::Tier;

/// Share of free memory that a run takes when nothing limits it: the rest is for the page cache and
/// everybody else.
constexpr double kShareOfFreeMemory = 0.9;
/// Ways to share one memory that are tried.
constexpr std::uint64_t kParts = 16;

Bytes usual_share(Bytes room) {
  return Bytes{static_cast<std::uint64_t>(static_cast<double>(room.value()) * kShareOfFreeMemory)};
}

/// The device's part of `room` in each way, most first.
std::vector<plan::Budgets> ways_to_share(Bytes device, Bytes host, Bytes room) {
  const auto way = [&](Bytes part) {
    return plan::Budgets{.device = part, .host = std::min(host, room - part), .nvme = {}};
  };
  std::vector<plan::Budgets> list;
  if (device < room) list.push_back(way(device));
  for (std::uint64_t part = kParts - 1; part > 0; --part) {
    const Bytes share = room / kParts * part;
    if (share < device) list.push_back(way(share));
  }
  return list;
}

bool uses_disk(const plan::Placement& placement) {
  return placement.any_state(Tier::nvme) || placement.any_activations(Tier::nvme);
}

}  // namespace

Bytes room_in(const MemoryBudget& memory) {
  return memory.available() - std::min(memory.available(), kProcessOverhead);
}

plan::Budgets share_memory(const TrainOptions& options, const plan::Workload& workload,
                           const MemoryBudget& memory, std::optional<Bytes> free_device) {
  const Bytes room = room_in(memory);
  const Bytes host = std::min(options.host_memory.value_or(usual_share(room)), room);
  if (free_device) {
    const Bytes device = std::min(options.device_memory.value_or(*free_device), *free_device);
    return {.device = device, .host = host, .nvme = {}};
  }
  // Who names both sizes has the whole room for them.
  const bool named = options.device_memory && options.host_memory;
  const Bytes asked = std::max(options.device_memory.value_or(Bytes{}), host);
  const Bytes both = named ? room : std::max(usual_share(room), std::min(room, asked));
  const Bytes device = std::min(options.device_memory.value_or(both), both);
  if (device + host <= both) return {.device = device, .host = host, .nvme = {}};
  const std::vector<plan::Budgets> ways = ways_to_share(device, host, both);
  const plan::PlacementRequest request = placement_request(options);
  const bool asks_for_disk = request.state == Tier::nvme || request.activations == Tier::nvme;
  for (const bool disk : {asks_for_disk, true}) {
    for (plan::Budgets way : ways) {
      way.nvme = Bytes{~std::uint64_t{0} >> 1};  // what the disks have room for is not asked here
      const auto choice = plan::choose_placement(workload, way, request);
      const auto* placement = std::get_if<plan::Placement>(&choice);
      if (placement == nullptr || (!disk && uses_disk(*placement))) continue;
      way.nvme = {};
      return way;
    }
  }
  if (ways.empty()) return {};
  return options.device_memory ? ways.front() : ways[ways.size() / 2];
}

plan::Budgets make_budgets(const TrainOptions& options, const std::filesystem::path& run,
                           const plan::Workload& workload) {
  std::optional<Bytes> free_device;
  if (options.device == DeviceKind::cuda) {
    // To plan with a size that was asked for takes no device.
    const bool usable = !options.device_memory || usable_device() == DeviceKind::cuda;
    free_device = usable ? free_device_memory() : *options.device_memory;
  }
  plan::Budgets budgets = share_memory(options, workload, read_memory_budget(), free_device);
  for (std::filesystem::path directory : state_directories(options, run)) {
    directory = std::filesystem::absolute(directory);
    while (!std::filesystem::exists(directory) && directory.has_relative_path()) {
      directory = directory.parent_path();
    }
    budgets.nvme += Bytes{std::filesystem::space(directory).available};
  }
  return budgets;
}

std::string why_less(std::optional<Bytes> asked, Bytes budget) {
  if (!asked || *asked <= budget) return {};
  return fmt::format(" (of {} asked for; {}, of which the program takes {} itself)",
                     format_bytes(*asked), read_memory_budget().describe(),
                     format_bytes(kProcessOverhead));
}

}  // namespace spillway::engine
