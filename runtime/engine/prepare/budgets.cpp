#include "runtime/engine/prepare/budgets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/affinity.hpp"
#include "runtime/base/error.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/prepare/place.hpp"
#include "runtime/plan/search/choose.hpp"

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

/// The most that the process can ever have. What the system says is in the machine, or available,
/// is no limit where memory grows as it is touched; a cgroup's is. What the process has already is
/// not in that limit, as it is in what is available: CUDA and its libraries take hundreds of MB.
Bytes hard_limit(const MemoryBudget& memory) {
  if (!memory.tightest_cgroup) return Bytes{std::numeric_limits<std::int64_t>::max()};
  const Bytes limit = memory.tightest_cgroup->limit;
  return limit - std::min(limit, memory.own + kProcessOverhead);
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

/// What a budget of host memory is made from.
std::string host_memory_text(const MemoryBudget& memory) {
  return fmt::format("{}, of which the program takes {} itself, beside {} that it has already",
                     memory.describe(), format_bytes(kProcessOverhead), format_bytes(memory.own));
}

/// How a need beyond a budget is refused.
struct Refusal {
  std::string_view flag;
  std::optional<Bytes> asked;
  Bytes free;  ///< the most that the flag can give
  std::string what_is_free;
  std::string_view remedy;

  [[noreturn]] void refuse(std::string_view name, Bytes needed, Bytes budget) const {
    std::string why{flag};
    if (!asked || *asked > budget) {
      why = asked ? fmt::format("of {} asked for; {}", format_bytes(*asked), what_is_free)
                  : what_is_free;
    }
    throw Error(ErrorCode::does_not_fit,
                fmt::format("does not fit: {} {} and the budget is {} ({}). What would make it "
                            "fit: {} of at least {}; or {}",
                            name, format_bytes(needed), format_bytes(budget), why,
                            needed <= free ? flag : "free memory", format_bytes(needed), remedy));
  }
};

}  // namespace

Bytes room_in(const MemoryBudget& memory) {
  return memory.available() - std::min(memory.available(), kProcessOverhead);
}

MemoryLimits memory_limits(const config::TrainOptions& options, const MemoryBudget& memory,
                           std::optional<Bytes> free_device) {
  const Bytes room = room_in(memory);
  if (free_device) {
    const Bytes device = std::min(options.device_memory.value_or(*free_device), *free_device);
    const Bytes host = options.host_memory ? std::min(*options.host_memory, hard_limit(memory))
                                           : usual_share(room);
    return {.device = device, .host = host, .both = device + host};
  }
  const Bytes host = std::min(options.host_memory.value_or(usual_share(room)), room);
  // Who names both sizes has the whole room for them.
  const bool named = options.device_memory && options.host_memory;
  const Bytes asked = std::max(options.device_memory.value_or(Bytes{}), host);
  const Bytes both = named ? room : std::max(usual_share(room), std::min(room, asked));
  const Bytes device = std::min(options.device_memory.value_or(both), both);
  return {.device = device, .host = host, .both = both};
}

std::optional<Bytes> free_memory_of_device(const config::TrainOptions& options) {
  if (options.device != config::DeviceKind::cuda) return std::nullopt;
  // To plan with a size that was asked for takes no device.
  const bool usable = !options.device_memory || usable_device() == config::DeviceKind::cuda;
  if (!usable) return *options.device_memory;
  if (shares_host_memory(options.device_index)) return std::nullopt;
  return free_device_memory(options.device_index);
}

void check_fits(const FixedNeeds& needs, const config::TrainOptions& options,
                const MemoryBudget& memory, std::optional<Bytes> free_device,
                std::string_view remedy) {
  const MemoryLimits limits = memory_limits(options, memory, free_device);
  const Refusal host{.flag = "--host-memory",
                     .asked = options.host_memory,
                     .free = room_in(memory),
                     .what_is_free = host_memory_text(memory),
                     .remedy = remedy};
  Refusal device = host;
  device.flag = "--device-memory";
  device.asked = options.device_memory;
  if (free_device) {
    device.free = *free_device;
    device.what_is_free = fmt::format("{} of device memory are free", format_bytes(*free_device));
  }
  if (needs.device > limits.device)
    device.refuse("device memory needs", needs.device, limits.device);
  if (needs.host > limits.host) host.refuse("host memory needs", needs.host, limits.host);
  Refusal both = host;
  both.flag = "--device-memory and --host-memory together";
  both.asked = std::nullopt;
  const Bytes needed = needs.device + needs.host;
  if (needed <= limits.both) return;
  both.refuse("device and host memory are one here and need", needed, limits.both);
}

plan::Budgets share_memory(const config::TrainOptions& options, const plan::Workload& workload,
                           const MemoryBudget& memory, std::optional<Bytes> free_device) {
  const auto [device, host, both] = memory_limits(options, memory, free_device);
  if (device + host <= both) return {.device = device, .host = host, .nvme = {}};
  const std::vector<plan::Budgets> ways = ways_to_share(device, host, both);
  const plan::PlacementRequest request = placement_request(options);
  const bool asks_for_disk = request.state == Tier::nvme || request.activations == Tier::nvme;
  for (const bool disk : {asks_for_disk, true}) {
    for (plan::Budgets way : ways) {
      way.nvme = plan::kUncounted;  // what the disks have room for is not asked here
      const auto choice = plan::choose_placement(workload, way, request);
      const auto* placement = std::get_if<plan::Placement>(&choice);
      if (placement == nullptr || (!disk && placement->uses_disk())) continue;
      way.nvme = {};
      return way;
    }
  }
  if (ways.empty()) return {};
  return options.device_memory ? ways.front() : ways[ways.size() / 2];
}

MemoryBudget per_rank(MemoryBudget memory, std::uint32_t ranks) {
  const std::uint64_t parts{ranks};
  memory.physical = memory.physical / parts;
  memory.physical_available = memory.physical_available / parts;
  for (auto* cgroup : {&memory.tightest_cgroup, &memory.scarcest_cgroup}) {
    if (!*cgroup) continue;
    (*cgroup)->limit = (*cgroup)->limit / parts;
    (*cgroup)->available = (*cgroup)->available / parts;
  }
  return memory;
}

plan::MachineProfile per_rank(plan::MachineProfile profile, std::uint32_t ranks) {
  profile.nvme_read /= ranks;
  profile.nvme_write /= ranks;
  profile.nvme_combined /= ranks;
  return profile;
}

plan::Budgets make_budgets(const config::TrainOptions& options, const std::filesystem::path& run,
                           const plan::Workload& workload, const Sharers& sharers) {
  // Asking the device starts CUDA, which takes memory of the host.
  const std::optional<Bytes> free_device = free_memory_of_device(options);
  plan::Budgets budgets =
      share_memory(options, workload, per_rank(read_memory_budget(), sharers.memory), free_device);
  std::set<dev_t> counted;  // two directories may share what is free
  for (std::filesystem::path directory : state_directories(options, run)) {
    directory = nearest_existing(std::move(directory));
    if (!counted.insert(file_system_of(directory)).second) continue;
    budgets.nvme += Bytes{std::filesystem::space(directory).available};
  }
  budgets.nvme = budgets.nvme / std::uint64_t{sharers.file_systems};
  return budgets;
}

std::string why_this_budget(std::optional<Bytes> asked, Bytes budget) {
  if (asked && *asked <= budget) return {};
  return fmt::format(" ({}{})", asked ? fmt::format("of {} asked for; ", format_bytes(*asked)) : "",
                     host_memory_text(read_memory_budget()));
}

std::vector<std::filesystem::path> state_directories(const config::TrainOptions& options,
                                                     const std::filesystem::path& run) {
  return options.nvme.empty() ? std::vector{run / "state"} : options.nvme;
}

}  // namespace spillway::engine
