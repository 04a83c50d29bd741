// Cores and drives of machines made by hand: who gets which.
#include "runtime/base/affinity.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/sysmacros.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temporary_directory.hpp"

namespace spillway::affinity_test {
namespace {

using test_support::TemporaryDirectory;
using ::testing::ElementsAre;
using Near = std::vector<std::vector<NodeIndex>>;
using Cores = std::vector<std::uint32_t>;
using Homes = std::vector<std::uint32_t>;
using Taken = std::vector<std::vector<std::size_t>>;

Topology synthetic(std::string text) { return read_topology({.synthetic = std::move(text)}); }

/// Two packages of a node with four cores each.
Topology two_nodes() { return synthetic("package:2 [numa] core:4 pu:1"); }
/// Two packages of four nodes with two cores each.
Topology eight_nodes() { return synthetic("package:2 node:4 core:2 pu:1"); }

/// The first processor of each core, by rank.
std::vector<Cores> cores_of(const std::vector<CoreShare>& shares) {
  std::vector<Cores> all;
  for (const CoreShare& share : shares) {
    Cores& cores = all.emplace_back();
    for (const Core& core : share.cores) cores.push_back(core.processors.front().value());
  }
  return all;
}

Homes homes_of(const std::vector<CoreShare>& shares) {
  Homes homes;
  for (const CoreShare& share : shares) homes.push_back(share.home.value());
  return homes;
}

Near nowhere(std::size_t ranks) { return Near(ranks); }
Near at(const std::vector<std::uint32_t>& nodes) {
  Near near;
  for (const std::uint32_t node : nodes) near.push_back({NodeIndex{node}});
  return near;
}

TEST(ShareCores, OneRankHasTheWholeMachine) {
  EXPECT_THAT(cores_of(share_cores(eight_nodes(), nowhere(1))).front(), ::testing::SizeIs(16));
  EXPECT_THAT(cores_of(share_cores(two_nodes(), at({1}))).front(), ::testing::SizeIs(8));
  EXPECT_EQ(homes_of(share_cores(two_nodes(), at({1}))), Homes{1});
}

TEST(ShareCores, RanksWithoutGpusAreSpreadOverNodesInOrder) {
  EXPECT_THAT(cores_of(share_cores(two_nodes(), nowhere(2))),
              ElementsAre(Cores{0, 1, 2, 3}, Cores{4, 5, 6, 7}));
  EXPECT_THAT(cores_of(share_cores(two_nodes(), nowhere(4))),
              ElementsAre(Cores{0, 1}, Cores{2, 3}, Cores{4, 5}, Cores{6, 7}));
  EXPECT_EQ(homes_of(share_cores(two_nodes(), nowhere(4))), (Homes{0, 0, 1, 1}));
  const auto two = share_cores(eight_nodes(), nowhere(2));
  EXPECT_EQ(homes_of(two), (Homes{0, 4}));
  EXPECT_THAT(cores_of(two),
              ElementsAre(Cores{0, 1, 2, 3, 4, 5, 6, 7}, Cores{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(homes_of(share_cores(eight_nodes(), nowhere(8))), (Homes{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(ShareCores, ARankIsAtHomeAtTheNodeOfItsGpu) {
  EXPECT_THAT(cores_of(share_cores(two_nodes(), at({1, 0}))),
              ElementsAre(Cores{4, 5, 6, 7}, Cores{0, 1, 2, 3}));
  EXPECT_THAT(cores_of(share_cores(two_nodes(), at({1, 1, 0}))),
              ElementsAre(Cores{4, 5}, Cores{6, 7}, Cores{0, 1, 2, 3}));
}

TEST(ShareCores, RanksWhoseGpusAreNearSeveralNodesAreSpreadOverThose) {
  const std::vector<NodeIndex> last{NodeIndex{4}, NodeIndex{5}, NodeIndex{6}, NodeIndex{7}};
  EXPECT_EQ(homes_of(share_cores(eight_nodes(), Near{last, last, {NodeIndex{0}}})),
            (Homes{4, 5, 0}));
}

TEST(ShareCores, AnIdleNodeIsSplitByThePackageOrByAll) {
  // GPUs at nodes 1 and 3 of the first package and 6 of the second.
  EXPECT_THAT(
      cores_of(share_cores(eight_nodes(), at({1, 3, 6}))),
      ElementsAre(Cores{0, 2, 3, 4}, Cores{1, 5, 6, 7}, Cores{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_THAT(cores_of(share_cores(two_nodes(), at({0, 0}))),
              ElementsAre(Cores{0, 1, 4, 5}, Cores{2, 3, 6, 7}));
}

TEST(ShareCores, NobodyIsBoundWhereRanksOutnumberCores) {
  const Topology small = synthetic("package:2 [numa] core:1 pu:2");
  for (const CoreShare& share : share_cores(small, nowhere(3))) EXPECT_TRUE(share.cores.empty());
  EXPECT_EQ(homes_of(share_cores(small, nowhere(3))), (Homes{0, 0, 1}));
}

TEST(ShareCores, OnlyUsableCoresAreShared) {
  Topology machine = two_nodes();
  std::erase_if(machine.cores, [](const Core& core) { return core.node == NodeIndex{0}; });
  // The GPU's node has no core that the launcher has left.
  EXPECT_THAT(cores_of(share_cores(machine, at({0, 0}))), ElementsAre(Cores{4, 5}, Cores{6, 7}));
  EXPECT_EQ(homes_of(share_cores(machine, nowhere(1))), Homes{1});
}

TEST(ShareCores, MachinesThatSayNothingOfNodesOrCoresAreShared) {
  EXPECT_THAT(cores_of(share_cores(synthetic("pu:4"), nowhere(2))),
              ElementsAre(Cores{0, 1}, Cores{2, 3}));
  EXPECT_THAT(cores_of(share_cores(synthetic("node:2 core:1 pu:1"), nowhere(2))),
              ElementsAre(Cores{0}, Cores{1}));
}

std::vector<NodeIndex> nodes(const Homes& values) {
  std::vector<NodeIndex> list;
  for (const std::uint32_t value : values) list.emplace_back(value);
  return list;
}

TEST(ShareDrives, ARankTakesTheNearestDrive) {
  EXPECT_EQ(share_drives(two_nodes(), nodes({0, 1}), at({1, 0})), (Taken{{1}, {0}}));
  EXPECT_EQ(share_drives(two_nodes(), nodes({0, 0, 1, 1}), at({0, 1})),
            (Taken{{0}, {0}, {1}, {1}}));
  // A drive of the package is nearer than one of the other.
  EXPECT_EQ(share_drives(eight_nodes(), nodes({0, 4}), at({7, 2})), (Taken{{1}, {0}}));
}

TEST(ShareDrives, EveryDriveServesAsManyRanks) {
  EXPECT_EQ(share_drives(two_nodes(), nodes({0, 0}), at({0, 1})), (Taken{{0}, {1}}));
  EXPECT_EQ(share_drives(two_nodes(), nodes({0, 0, 0, 0}), at({1, 0})),
            (Taken{{1}, {1}, {0}, {0}}));
  EXPECT_EQ(share_drives(two_nodes(), nodes({0, 0, 1, 1}), nowhere(2)),
            (Taken{{0}, {1}, {0}, {1}}));
  // The second rank has a claim to the first drive, which the first one has not.
  EXPECT_EQ(share_drives(two_nodes(), nodes({0, 1}), Near{{NodeIndex{1}}, {}}), (Taken{{1}, {0}}));
}

TEST(ShareDrives, MoreDrivesThanRanksAreAllTaken) {
  EXPECT_EQ(share_drives(two_nodes(), nodes({0, 1}), at({0, 1, 0, 1})), (Taken{{0, 2}, {1, 3}}));
  EXPECT_EQ(share_drives(two_nodes(), nodes({0, 1}), at({0, 1, 1})), (Taken{{0}, {1, 2}}));
  EXPECT_EQ(share_drives(two_nodes(), nodes({0}), at({1, 0, 1})), (Taken{{0, 1, 2}}));
}

/// A tree of /sys as Linux has it.
class SysTree {
 public:
  /// Makes a block device below `folder`, and what finds it by its number.
  void add(const std::string& number, const std::string& folder) {
    root_.write("sys/" + folder + "/dev", number + "\n");
    link("sys/dev/block/" + number, "sys/" + folder);
  }
  void link(const std::string& from, const std::string& to) {
    std::filesystem::create_directories((root_.path() / from).parent_path());
    std::filesystem::create_symlink(root_.path() / to, root_.path() / from);
  }
  TemporaryDirectory& root() { return root_; }
  [[nodiscard]] Drive drive(unsigned high, unsigned low) const {
    return drive_of(makedev(high, low), root_.path());
  }

 private:
  TemporaryDirectory root_;
};

TEST(DriveOf, IsTheDiskOfAPartition) {
  SysTree tree;
  const std::string disk = "devices/pci0000:3a/0000:3b:00.0/nvme/nvme0/nvme0n1";
  tree.add("259:0", disk);
  tree.add("259:2", disk + "/nvme0n1p2");
  tree.root().write("sys/" + disk + "/nvme0n1p2/partition", "2\n");
  const Drive part = tree.drive(259, 2);
  EXPECT_EQ(part.file_system, makedev(259, 2));
  EXPECT_EQ(part.disk, makedev(259, 0));
  EXPECT_THAT(part.devices, ElementsAre("259:0"));
  EXPECT_EQ(tree.drive(259, 0).disk, makedev(259, 0));
}

TEST(DriveOf, LooksThroughWhatIsMadeOfSeveralDisks) {
  SysTree tree;
  tree.add("8:0", "devices/pci0000:00/0000:00:01.0/block/sda");
  tree.add("8:16", "devices/pci0000:80/0000:80:01.0/block/sdb");
  tree.add("8:17", "devices/pci0000:80/0000:80:01.0/block/sdb/sdb1");
  tree.root().write("sys/devices/pci0000:80/0000:80:01.0/block/sdb/sdb1/partition", "1\n");
  tree.add("9:0", "devices/virtual/block/md0");
  tree.add("253:0", "devices/virtual/block/dm-0");
  tree.link("sys/devices/virtual/block/dm-0/slaves/md0", "sys/devices/virtual/block/md0");
  tree.link("sys/devices/virtual/block/md0/slaves/sda",
            "sys/devices/pci0000:00/0000:00:01.0/block/sda");
  tree.link("sys/devices/virtual/block/md0/slaves/sdb1",
            "sys/devices/pci0000:80/0000:80:01.0/block/sdb/sdb1");
  const Drive volume = tree.drive(253, 0);
  EXPECT_EQ(volume.disk, makedev(253, 0));
  EXPECT_THAT(volume.devices, ::testing::UnorderedElementsAre("8:0", "8:16"));
}

TEST(DriveOf, KnowsTheControllersOfNvmeWithSeveralPaths) {
  SysTree tree;
  const std::string controller = "devices/pci0000:3a/0000:3b:00.0/nvme/nvme0";
  const std::string subsystem = "devices/virtual/nvme-subsystem/nvme-subsys0";
  tree.add("259:1", subsystem + "/nvme0n1");
  tree.root().write("sys/devices/pci0000:3a/0000:3b:00.0/numa_node", "1\n");
  tree.root().write("sys/" + controller + "/cntlid", "1\n");
  tree.link("sys/" + controller + "/device", "sys/devices/pci0000:3a/0000:3b:00.0");
  tree.link("sys/" + subsystem + "/nvme0", "sys/" + controller);
  EXPECT_THAT(tree.drive(259, 1).devices, ElementsAre("0000:3b:00.0"));
}

TEST(DriveOf, MemoryAndNetworksHaveNone) {
  const SysTree tree;
  const Drive drive = tree.drive(0, 42);
  EXPECT_EQ(drive.disk, makedev(0, 42));
  EXPECT_TRUE(drive.devices.empty());
}

TEST(DriveOf, FindsTheNearestDirectoryThatIsThere) {
  const TemporaryDirectory here;
  EXPECT_EQ(nearest_existing(here.path() / "run/state"), here.path());
  EXPECT_NE(file_system_of(here.path()), file_system_of("/proc"));
}

TEST(ThreadBinding, HoldsForThreadsThatItsThreadStartsUntilItGoes) {
  const Topology machine = read_topology();
  const Core last = machine.cores.back();
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  {
    const ThreadBinding binding(std::array{last});
    EXPECT_TRUE(binding.holds());
    EXPECT_EQ(read_topology().cores.size(), 1U);
    std::size_t inherited = 0;
    std::thread([&] { inherited = read_topology().usable_processors(); }).join();
    EXPECT_EQ(inherited, last.processors.size());
  }
  cpu_set_t after;
  ASSERT_EQ(::sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(ThreadBinding, LeavesAThreadAloneThatHasNoCoresOfItsOwn) {
  EXPECT_FALSE(ThreadBinding({}).holds());
  const Core beyond{.node = {}, .processors = {ProcessorIndex{1U << 20}}};
  EXPECT_FALSE(ThreadBinding(std::array{beyond}).holds());
}

}  // namespace
}  // namespace spillway::affinity_test
