#include "runtime/engine/machine/machine_share.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/engine/ranks/rank_agreement.hpp"

namespace spillway::engine {
namespace {

/// A set of processors or nodes that ranks can tell each other.
template <std::size_t kMost>
struct IndexSet {
  std::array<std::uint64_t, kMost / 64> words{};

  void insert(std::uint32_t index) {
    if (index < kMost) words[index / 64] |= std::uint64_t{1} << (index % 64);
  }
  [[nodiscard]] bool has(std::uint32_t index) const {
    return index < kMost && (words[index / 64] >> (index % 64) & 1) != 0;
  }
  bool operator==(const IndexSet&) const = default;
};

/// What ranks know of each other before cores are shared out.
struct Neighbour {
  MachineName machine = machine_name();
  std::uint64_t process = static_cast<std::uint64_t>(::getpid());
  IndexSet<8192> usable{};  ///< processors
  IndexSet<1024> near{};    ///< nodes around the GPU
};

/// What ranks know of each other's directories.
struct Store {
  std::uint64_t file_system;
  std::uint64_t disk;

  bool operator==(const Store&) const = default;
};

Neighbour neighbour_of(const Topology& machine, const ShareRequest& request) {
  Neighbour mine;
  for (const Core& core : machine.cores) {
    for (const ProcessorIndex processor : core.processors) mine.usable.insert(processor.value());
  }
  std::vector<NodeIndex> near;
  if (request.gpu) near = machine.nodes_near(*request.gpu);
  if (near.empty() && request.gpu_node) near = {*request.gpu_node};
  for (const NodeIndex node : near) mine.near.insert(node.value());
  return mine;
}

/// The ranks that `belongs` says are together with this one, this one included.
template <class Condition>
std::vector<std::size_t> ranks_with(std::span<const Neighbour> every, const Condition& belongs) {
  std::vector<std::size_t> ranks;
  for (std::size_t rank = 0; rank < every.size(); ++rank) {
    if (belongs(every[rank])) ranks.push_back(rank);
  }
  return ranks;
}

/// Sets the rank's cores and threads. A launcher's choice is known by the cores that it has left.
void take_cores(const Topology& machine, std::span<const Neighbour> every, std::size_t self,
                MachineShare& share) {
  const Neighbour& mine = every[self];
  const auto group = ranks_with(every, [&](const Neighbour& other) {
    return other.machine == mine.machine && other.usable == mine.usable;
  });
  std::vector<std::vector<NodeIndex>> near;
  for (const std::size_t rank : group) {
    std::vector<NodeIndex>& nodes = near.emplace_back();
    for (const NumaNode& node : machine.nodes) {
      if (every[rank].near.has(node.index.value())) nodes.push_back(node.index);
    }
  }
  const auto position = static_cast<std::size_t>(std::ranges::find(group, self) - group.begin());
  share.core_share = share_cores(machine, near)[position];
  const auto processes = ranks_with(every, [&](const Neighbour& other) {
    return other.machine == mine.machine && other.process == mine.process;
  });
  // Threads of one process share the workers of its libraries, which nobody may bind for others.
  if (processes.size() > 1) share.core_share.cores.clear();
  const std::size_t own = share.core_share.cores.size();
  const std::size_t part = std::max<std::size_t>(1, machine.cores.size() / group.size());
  share.threads = static_cast<std::uint32_t>(own > 0 ? own : part);
}

/// The directories of each rank of this machine, as indices of its own list.
using Choice = std::vector<std::vector<std::size_t>>;

Choice all_of(std::span<const std::vector<Store>> lists) {
  Choice choice;
  for (const std::vector<Store>& list : lists) {
    std::vector<std::size_t>& own = choice.emplace_back();
    for (std::size_t i = 0; i < list.size(); ++i) own.push_back(i);
  }
  return choice;
}

/// The most ranks that have state where rank `self` has some.
std::uint32_t most_sharers(std::span<const std::vector<Store>> stores, std::size_t self,
                           std::uint64_t Store::*part) {
  std::ptrdiff_t most = 1;
  for (const Store& store : stores[self]) {
    const auto shares = [&](const std::vector<Store>& other) {
      return std::ranges::find(other, store.*part, part) != other.end();
    };
    most = std::max(most, std::ranges::count_if(stores, shares));
  }
  return static_cast<std::uint32_t>(most);
}

/// The number of lower ranks that have state on a disk of rank `self`.
std::uint32_t turn_of(std::span<const std::vector<Store>> stores, std::size_t self) {
  const auto shares = [&](const std::vector<Store>& other) {
    return std::ranges::any_of(other, [&](const Store& store) {
      return std::ranges::find(stores[self], store.disk, &Store::disk) != stores[self].end();
    });
  };
  return static_cast<std::uint32_t>(std::ranges::count_if(stores.first(self), shares));
}

/// Sets what the rank's state lies on, and how many others have some there.
void take_drives(RankGroups& ranks, const Topology& machine,
                 std::span<const std::size_t> neighbours, const ShareRequest& request,
                 MachineShare& share) {
  std::vector<Store> own;
  std::vector<std::vector<NodeIndex>> near;
  for (const auto& directory : request.directories) {
    const Drive drive = spillway::drive_of(file_system_of(nearest_existing(directory)));
    own.push_back({.file_system = drive.file_system, .disk = drive.disk});
    std::vector<NodeIndex>& nodes = near.emplace_back();
    for (const std::string& device : drive.devices) {
      for (const NodeIndex node : machine.nodes_near(device)) nodes.push_back(node);
    }
  }
  const auto lists = ranks.gather_lists(own);
  const auto homes = ranks.gather(share.core_share.home);
  const std::size_t self = ranks.place().rank;
  std::vector<std::vector<Store>> stores;
  std::vector<NodeIndex> homes_here;
  for (const std::size_t rank : neighbours) {
    stores.push_back(lists[rank]);
    homes_here.push_back(homes[rank]);
  }
  const auto position =
      static_cast<std::size_t>(std::ranges::find(neighbours, self) - neighbours.begin());
  const auto alike = [&](const std::vector<Store>& other) { return other == own; };
  const bool divides =
      request.divides_directories && own.size() > 1 && std::ranges::all_of(stores, alike);
  const Choice choice = divides ? share_drives(machine, homes_here, near) : all_of(stores);
  for (std::size_t i = 0; i < stores.size(); ++i) {
    std::vector<Store> chosen;
    for (const std::size_t d : choice[i]) chosen.push_back(stores[i][d]);
    stores[i] = std::move(chosen);
  }
  for (const std::size_t d : choice[position]) share.directories.push_back(request.directories[d]);
  share.sharers.file_systems = most_sharers(stores, position, &Store::file_system);
  share.sharers.disks = most_sharers(stores, position, &Store::disk);
  share.turn = turn_of(stores, position);
}

}  // namespace

MachineShare share_machine(RankGroups& ranks, const ShareRequest& request) {
  MachineShare share;
  const Topology machine = read_topology({.devices = Devices::read});
  const std::vector<Neighbour> every = ranks.gather(neighbour_of(machine, request));
  const std::size_t self = ranks.place().rank;
  const auto neighbours = ranks_with(
      every, [&](const Neighbour& other) { return other.machine == every[self].machine; });
  share.sharers.memory = static_cast<std::uint32_t>(neighbours.size());
  take_cores(machine, every, self, share);
  take_drives(ranks, machine, neighbours, request, share);
  share.turns = 1 + std::ranges::max(ranks.gather(share.turn));
  return share;
}

std::vector<ShownShare> gather_shares(RankGroups& ranks, const ShownShare& mine) {
  const std::string text = nlohmann::json{
      {"machine", mine.machine}, {"nodes", mine.nodes}, {"cores", mine.cores},
      {"bound", mine.bound},     {"gpu", mine.gpu},     {"threads", mine.threads},
      {"state", mine.state}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::vector<ShownShare> shares;
  for (const auto& other : ranks.gather_lists(std::vector<char>(text.begin(), text.end()))) {
    const nlohmann::json share =
        parse_json({other.data(), other.size()}, {.origin = "a rank's part of its machine"});
    shares.push_back({.machine = share.at("machine"),
                      .nodes = share.at("nodes"),
                      .cores = share.at("cores"),
                      .bound = share.at("bound"),
                      .threads = share.at("threads"),
                      .gpu = share.at("gpu"),
                      .state = share.at("state")});
  }
  return shares;
}

}  // namespace spillway::engine
