#include "runtime/base/affinity.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/log.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;

/// Each of `parts` has so many, or one less.
std::size_t ceil_of(std::size_t count, std::size_t parts) { return (count + parts - 1) / parts; }

/// A node, with what of it is shared out.
struct Socket {
  NodeIndex node;
  std::uint32_t package;
  std::vector<Core> cores;
};

/// The nodes that have usable cores.
std::vector<Socket> sockets_of(const Topology& machine) {
  std::vector<Socket> sockets;
  for (const NumaNode& node : machine.nodes) {
    Socket socket{node.index, node.package, {}};
    for (const Core& core : machine.cores) {
      if (core.node == node.index) socket.cores.push_back(core);
    }
    if (!socket.cores.empty()) sockets.push_back(std::move(socket));
  }
  return sockets;
}

/// The socket of each rank.
std::vector<std::size_t> homes_of(const std::vector<Socket>& sockets,
                                  std::span<const std::vector<NodeIndex>> near) {
  std::vector<std::optional<std::size_t>> homes(near.size());
  std::vector<std::size_t> ranks_at(sockets.size());
  for (std::size_t rank = 0; rank < near.size(); ++rank) {
    for (std::size_t s = 0; s < sockets.size(); ++s) {
      if (std::ranges::count(near[rank], sockets[s].node) == 0) continue;
      if (!homes[rank] || ranks_at[s] < ranks_at[*homes[rank]]) homes[rank] = s;
    }
    if (homes[rank]) ++ranks_at[*homes[rank]];
  }
  const auto others = static_cast<std::size_t>(
      std::ranges::count_if(homes, [](const auto& home) { return !home.has_value(); }));
  std::vector<std::size_t> found;
  found.reserve(homes.size());
  std::size_t other = 0;
  for (const auto& home : homes) {
    found.push_back(home ? *home : other++ * sockets.size() / others);
  }
  return found;
}

/// The ranks that split the cores of a socket.
std::vector<std::size_t> users_of(const std::vector<Socket>& sockets, std::size_t socket,
                                  const std::vector<std::size_t>& homes) {
  const auto ranks_with = [&](const auto& condition) {
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 0; rank < homes.size(); ++rank) {
      if (condition(homes[rank])) ranks.push_back(rank);
    }
    return ranks;
  };
  const std::uint32_t package = sockets[socket].package;
  auto users = ranks_with([&](std::size_t home) { return home == socket; });
  if (!users.empty()) return users;
  users = ranks_with([&](std::size_t home) { return sockets[home].package == package; });
  return users.empty() ? ranks_with([](std::size_t) { return true; }) : users;
}

enum class Distance : std::uint8_t { same_node, same_package, unknown_or_far };

Distance distance_of(const Topology& machine, NodeIndex home, std::span<const NodeIndex> near) {
  if (std::ranges::count(near, home) > 0) return Distance::same_node;
  const auto package_of = [&](NodeIndex node) {
    const auto found = std::ranges::find(machine.nodes, node, &NumaNode::index);
    return found == machine.nodes.end() ? std::nullopt : std::optional(found->package);
  };
  const auto beside = [&](NodeIndex node) { return package_of(node) == package_of(home); };
  return std::ranges::any_of(near, beside) ? Distance::same_package : Distance::unknown_or_far;
}

/// Adds what the disk in a folder of /sys is made of, or itself.
void add_devices(const fs::path& disk, std::vector<std::string>& names) {
  const fs::path slaves = disk / "slaves";
  bool composed = false;
  if (fs::is_directory(slaves)) {
    for (const fs::directory_entry& slave : fs::directory_iterator(slaves)) {
      composed = true;
      const fs::path part = fs::canonical(slave.path());
      add_devices(fs::exists(part / "partition") ? part.parent_path() : part, names);
    }
  }
  if (composed) return;
  // NVMe with several paths: the disk is below a subsystem that links to its controllers.
  if (disk.parent_path().filename().string().starts_with("nvme-subsys")) {
    for (const fs::directory_entry& entry : fs::directory_iterator(disk.parent_path())) {
      const fs::path controller = fs::canonical(entry.path()) / "device";
      if (entry.is_symlink() && fs::exists(controller / "numa_node")) {
        names.push_back(fs::canonical(controller).filename().string());
      }
    }
    return;
  }
  std::string number = read_text_file(disk / "dev", 4_KiB);
  number.erase(number.find_last_not_of('\n') + 1);
  names.push_back(std::move(number));
}

}  // namespace

std::vector<CoreShare> share_cores(const Topology& machine,
                                   std::span<const std::vector<NodeIndex>> near) {
  const std::vector<Socket> sockets = sockets_of(machine);
  const std::vector<std::size_t> homes = homes_of(sockets, near);
  std::vector<CoreShare> shares;
  shares.reserve(homes.size());
  for (const std::size_t home : homes) shares.push_back({sockets[home].node, {}});
  for (std::size_t s = 0; s < sockets.size(); ++s) {
    const std::vector<std::size_t> users = users_of(sockets, s, homes);
    const std::vector<Core>& cores = sockets[s].cores;
    for (std::size_t u = 0; u < users.size(); ++u) {
      std::vector<Core>& mine = shares[users[u]].cores;
      for (std::size_t core = cores.size() * u / users.size();
           core < cores.size() * (u + 1) / users.size(); ++core) {
        mine.push_back(cores[core]);
      }
    }
  }
  const auto lacks_cores = [](const CoreShare& share) { return share.cores.empty(); };
  if (std::ranges::any_of(shares, lacks_cores)) {
    for (CoreShare& share : shares) share.cores.clear();
  }
  return shares;
}

fs::path nearest_existing(fs::path directory) {
  directory = fs::absolute(directory);
  while (!fs::exists(directory) && directory.has_relative_path()) {
    directory = directory.parent_path();
  }
  return directory;
}

dev_t file_system_of(const fs::path& directory) {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) {
    throw_errno(errno, fmt::format("stat {}", directory.string()));
  }
  return status.st_dev;
}

Drive drive_of(dev_t file_system, const fs::path& root) {
  Drive drive{.file_system = file_system, .disk = file_system, .devices = {}};
  const fs::path link =
      root / "sys/dev/block" / fmt::format("{}:{}", major(file_system), minor(file_system));
  try {
    if (!fs::exists(link)) return drive;  // memory, network, or several devices
    fs::path disk = fs::canonical(link);
    if (fs::exists(disk / "partition")) disk = disk.parent_path();
    unsigned high = 0;
    unsigned low = 0;
    const std::string number = read_text_file(disk / "dev", 4_KiB);
    if (std::sscanf(number.c_str(), "%u:%u", &high, &low) == 2) drive.disk = makedev(high, low);
    add_devices(disk, drive.devices);
  } catch (const std::exception& error) {
    // A container may hide parts of the tree: then the drive is as near to every rank.
    log_debug("where the drive {} is, is unknown: {}", link.string(), error.what());
  }
  return drive;
}

std::vector<std::vector<std::size_t>> share_drives(const Topology& machine,
                                                   std::span<const NodeIndex> homes,
                                                   std::span<const std::vector<NodeIndex>> drives) {
  std::vector<std::vector<std::size_t>> taken(homes.size());
  const std::size_t most = ceil_of(homes.size(), drives.size());
  const std::size_t rounds = ceil_of(drives.size(), homes.size());
  std::vector<std::size_t> ranks_on(drives.size());
  const auto take = [&](std::size_t rank, Distance distance) {
    std::optional<std::size_t> best;
    for (std::size_t d = 0; d < drives.size(); ++d) {
      if (ranks_on[d] == most || distance_of(machine, homes[rank], drives[d]) != distance) continue;
      if (!best || ranks_on[d] < ranks_on[*best]) best = d;
    }
    if (!best) return;
    ++ranks_on[*best];
    taken[rank].push_back(*best);
  };
  for (std::size_t round = 1; round <= rounds; ++round) {
    for (const auto distance :
         {Distance::same_node, Distance::same_package, Distance::unknown_or_far}) {
      for (std::size_t rank = 0; rank < homes.size(); ++rank) {
        if (taken[rank].size() < round) take(rank, distance);
      }
    }
  }
  for (auto& own : taken) std::ranges::sort(own);
  return taken;
}

ThreadBinding::ThreadBinding(std::span<const Core> cores) : thread_(::gettid()) {
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const Core& core : cores) {
    for (const ProcessorIndex processor : core.processors) {
      if (processor.value() >= CPU_SETSIZE) return;
      CPU_SET(processor.value(), &wanted);
    }
  }
  holds_ = !cores.empty() && ::sched_getaffinity(thread_, sizeof before_, &before_) == 0 &&
           ::sched_setaffinity(thread_, sizeof wanted, &wanted) == 0;
}

ThreadBinding::~ThreadBinding() {
  if (holds_) ::sched_setaffinity(thread_, sizeof before_, &before_);
}

}  // namespace spillway
