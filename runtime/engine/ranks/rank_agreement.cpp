#include "runtime/engine/ranks/rank_agreement.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "offload/cuda/cuda_device.hpp"
#include "runtime/base/elapsed.hpp"
#include "runtime/base/error.hpp"

namespace spillway::engine {
namespace {

/// Bytes each rank sends in a network measurement: enough to make the start-up cost negligible, if
/// the network moves them in `kMeasuredSeconds` and there is room for the parts of all ranks.
constexpr Bytes kFirstShard = 64_KiB;
constexpr Bytes kLargestShard = 4_MiB;
constexpr Bytes kAllShards = 64_MiB;
constexpr double kMeasuredSeconds = 0.2;
constexpr int kMeasurements = 3;

/// Where a rank computes.
struct Place {
  MachineName machine = machine_name();
  std::array<char, 32> gpu{};  ///< on the PCI bus; empty for the host

  bool operator==(const Place&) const = default;
};

void check_own_gpus(std::span<const Place> places) {
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto first = std::ranges::find(places, places[rank]);
    const auto other = static_cast<std::size_t>(first - places.begin());
    check(other == rank || places[rank].gpu[0] == 0, ErrorCode::invalid_argument,
          fmt::format("ranks {} and {} on {} have one GPU, {}, and each needs its own: start as "
                      "many ranks on a machine as it has GPUs, and if CUDA_VISIBLE_DEVICES is set, "
                      "let it show each rank its own or show all of them to every rank",
                      other, rank, places[rank].machine.data(), places[rank].gpu.data()));
  }
}

/// Returns the seconds of an all_gather of shards of this size.
double seconds_of_gather(comm::Communicator& ranks, Bytes shard) {
  const std::vector<std::byte> mine(shard.value());
  std::vector<std::byte> all(shard.value() * ranks.ranks());
  ranks.barrier().wait();
  const auto begin = std::chrono::steady_clock::now();
  ranks.all_gather(mine, all).wait();
  return seconds_since(begin);
}

/// Returns the best rate of a few gathers, which take less than a second together unless even the
/// smallest are slow. Rank 0 says how large they are.
double network_rate(comm::Communicator& ranks) {
  constexpr std::uint64_t kGrowth = 8;
  const Bytes largest = std::min(kLargestShard, kAllShards / std::uint64_t{ranks.ranks()});
  Bytes shard = std::min(kFirstShard, largest);
  double best = 0;
  for (int left = kMeasurements; left > 0;) {
    const double seconds = seconds_of_gather(ranks, shard);
    const double sent = static_cast<double>(shard.value()) * (ranks.ranks() - 1);
    best = std::max(best, sent / seconds);
    bool grows = shard < largest && kGrowth * seconds < kMeasuredSeconds;
    ranks.broadcast(std::as_writable_bytes(std::span{&grows, 1}), Rank{}).wait();
    if (grows) {
      shard = std::min(shard * kGrowth, largest);
    } else {
      --left;
    }
  }
  return best;
}

}  // namespace

MachineName machine_name() {
  constexpr std::size_t kNumber = 36;  // the characters of a UUID
  MachineName name{};
  static_assert(HOST_NAME_MAX + 1 + kNumber <= name.size());
  ::gethostname(name.data(), HOST_NAME_MAX);
  std::ifstream("/proc/sys/kernel/random/boot_id").read(&name[HOST_NAME_MAX + 1], kNumber);
  return name;
}

std::uint64_t largest_of(RankGroups& ranks, std::uint64_t mine) {
  return std::ranges::max(ranks.gather(mine));
}

std::uint32_t common_to(RankGroups& ranks, std::uint32_t mine) {
  const std::vector<std::uint32_t> all = ranks.gather(mine);
  return std::ranges::all_of(all, [&](std::uint32_t each) { return each == all.front(); }) ? mine
                                                                                           : 0;
}

double seconds_of_job(RankGroups& ranks, double stretch, double seconds) {
  struct Said {
    double stretch, seconds;
  };
  const Said mine{.stretch = stretch, .seconds = seconds * stretch};
  return std::ranges::min(ranks.gather(mine), plan::speaks_for_job, &Said::stretch).seconds;
}

int gpu_of_rank(RankGroups& ranks, config::DeviceKind device) {
  Place mine;
  int index = 0;
  const std::vector<Place> others = ranks.gather(mine);
  if (device == config::DeviceKind::cuda) {
    const auto before = std::span(others).first(ranks.place().rank);
    const auto place = static_cast<int>(std::ranges::count(before, mine));
    index = place % std::max(offload::count_cuda_devices(), 1);
    const std::string bus = offload::query_cuda_device(index).pci_bus_id;
    std::ranges::copy_n(bus.begin(), std::ssize(bus.substr(0, mine.gpu.size() - 1)),
                        mine.gpu.begin());
  }
  check_own_gpus(ranks.gather(mine));
  return index;
}

plan::Budgets least(RankGroups& ranks, const plan::Budgets& mine) {
  plan::Budgets result = mine;
  for (const plan::Budgets& other : ranks.gather(mine)) {
    result.device = std::min(result.device, other.device);
    result.host = std::min(result.host, other.host);
    result.nvme = std::min(result.nvme, other.nvme);
  }
  return result;
}

plan::MachineProfile with_links(RankGroups& ranks, plan::MachineProfile mine) {
  using Group = RankGroups::Group;
  const auto measure = [&](Group group, double& rate) {
    if (ranks.host(group) != nullptr) rate = network_rate(*ranks.host(group));
  };
  measure(Group::job, mine.net);
  measure(Group::node, mine.net_node);
  measure(Group::tensor, mine.net_tensor);
  return mine;
}

namespace {

plan::CoreShares widest(const plan::CoreShares& a, const plan::CoreShares& b) {
  return {.compute = std::max(a.compute, b.compute),
          .update = std::max(a.update, b.update),
          .copy = std::max(a.copy, b.copy),
          .disk = std::max(a.disk, b.disk)};
}

/// A rate of 0 was left to another rank to measure.
double slower(double a, double b) { return a > 0 && b > 0 ? std::min(a, b) : std::max(a, b); }

plan::DiskCosts costlier(const plan::DiskCosts& a, const plan::DiskCosts& b) {
  return {.checksum = slower(a.checksum, b.checksum),
          .commit_seconds = std::max(a.commit_seconds, b.commit_seconds)};
}

plan::Pace wider(const plan::Pace& a, const plan::Pace& b) {
  return {.fast = std::max(a.fast, b.fast), .slow = std::min(a.slow, b.slow)};
}

}  // namespace

plan::MachineProfile slowest(RankGroups& ranks, const plan::MachineProfile& mine) {
  using Profile = plan::MachineProfile;
  constexpr double Profile::*kRates[] = {
      &Profile::gpu_flops,  &Profile::h2d,        &Profile::d2h,        &Profile::h2d_d2h_combined,
      &Profile::update,     &Profile::gpu_update, &Profile::net,        &Profile::net_node,
      &Profile::net_tensor, &Profile::nvme_read,  &Profile::nvme_write, &Profile::nvme_combined};
  constexpr plan::Pace plan::Paces::*kPaces[] = {&plan::Paces::compute, &plan::Paces::link,
                                                 &plan::Paces::update, &plan::Paces::disk};
  Profile result = mine;
  for (const Profile& other : ranks.gather(mine)) {
    for (const auto rate : kRates) result.*rate = slower(result.*rate, other.*rate);
    result.op_overhead_seconds = std::max(result.op_overhead_seconds, other.op_overhead_seconds);
    result.wake_seconds = std::max(result.wake_seconds, other.wake_seconds);
    result.disk = costlier(result.disk, other.disk);
    result.cores = widest(result.cores, other.cores);
    for (const auto part : kPaces)
      result.paces.*part = wider(result.paces.*part, other.paces.*part);
  }
  return result;
}

}  // namespace spillway::engine
