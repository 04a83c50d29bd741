#include "runtime/base/topology.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <set>

#include "runtime/base/error.hpp"
#include "tests/support/temporary_directory.hpp"

namespace spillway::topology_test {
namespace {

using test_support::TemporaryDirectory;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Topology, DescribesAMachineOfTwoNodes) {
  const Topology machine = read_topology(
      {.synthetic =
           "package:2 [numa(memory=8GB)] l3:2(size=33554432) l2:4(size=1048576) core:1 pu:2"});
  ASSERT_EQ(machine.nodes.size(), 2U);
  EXPECT_EQ(machine.nodes[0].index, NodeIndex{0});
  EXPECT_EQ(machine.nodes[1].index, NodeIndex{1});
  EXPECT_GE(machine.nodes[0].memory, Bytes{7'000'000'000});
  EXPECT_EQ(machine.nodes[0].processors.size(), 16U);
  ASSERT_EQ(machine.cores.size(), 16U);
  EXPECT_EQ(machine.usable_processors(), 32U);
  EXPECT_EQ(machine.l2_bytes, 1_MiB);
  EXPECT_EQ(machine.l3_bytes, 32_MiB);
  EXPECT_EQ(machine.l3_caches, 4U);
  std::set<std::uint32_t> seen;
  for (std::size_t i = 0; i < machine.cores.size(); ++i) {
    EXPECT_EQ(machine.cores[i].node, NodeIndex{i < 8 ? 0U : 1U});
    ASSERT_EQ(machine.cores[i].processors.size(), 2U);
    for (const ProcessorIndex processor : machine.cores[i].processors) {
      EXPECT_TRUE(seen.insert(processor.value()).second);
    }
  }
}

TEST(Topology, AMachineWithoutCachesOrCoresStillHasProcessors) {
  const Topology machine = read_topology({.synthetic = "pu:3"});
  EXPECT_EQ(machine.usable_processors(), 3U);
  EXPECT_EQ(machine.cores.size(), 3U);
  EXPECT_EQ(machine.nodes.size(), 1U);
  EXPECT_EQ(machine.l3_bytes, 0_B);
  EXPECT_EQ(machine.l3_caches, 0U);
}

TEST(Topology, RefusesADescriptionThatIsNone) {
  EXPECT_THROW((void)read_topology({.synthetic = "two big boxes"}), Error);
}

TEST(Topology, ReadsThisMachineAndItsAffinity) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  const Topology whole = read_topology();
  EXPECT_EQ(whole.usable_processors(), static_cast<std::size_t>(CPU_COUNT(&before)));
  EXPECT_FALSE(whole.cpu_model.empty());
  EXPECT_GE(whole.nodes.size(), 1U);
  EXPECT_GE(whole.cores.size(), 1U);
  for (const Core& core : whole.cores) {
    for (const ProcessorIndex processor : core.processors) {
      EXPECT_TRUE(CPU_ISSET(processor.value(), &before));
    }
  }
  // Bound to one processor, this process has one.
  const ProcessorIndex last = whole.cores.back().processors.back();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(last.value(), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  const Topology bound = read_topology();
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
  ASSERT_EQ(bound.cores.size(), 1U);
  EXPECT_EQ(bound.cores[0].processors, std::vector<ProcessorIndex>{last});
  EXPECT_EQ(bound.cores[0].node, whole.cores.back().node);
}

/// Two packages with a node, a core, a GPU and a drive each, and a drive of which the firmware does
/// not say where it is.
constexpr const char* kMachine = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
<object type="Machine" os_index="0" cpuset="3" complete_cpuset="3" allowed_cpuset="3"
        nodeset="3" complete_nodeset="3" allowed_nodeset="3">
  <object type="Package" os_index="0" cpuset="1" complete_cpuset="1" nodeset="1"
          complete_nodeset="1">
    <object type="NUMANode" os_index="0" cpuset="1" complete_cpuset="1" nodeset="1"
            complete_nodeset="1" local_memory="1073741824"/>
    <object type="PU" os_index="0" cpuset="1" complete_cpuset="1" nodeset="1" complete_nodeset="1"/>
    <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[10-1f]">
      <object type="PCIDev" pci_busid="0000:17:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1"
              pci_link_speed="0"/>
      <object type="PCIDev" pci_busid="0000:18:00.0" pci_type="0108 [144d:a80a] [144d:a801] 00"
              pci_link_speed="0">
        <object type="OSDev" name="nvme0n1" osdev_type="0">
          <info name="LinuxDeviceID" value="259:0"/>
        </object>
      </object>
    </object>
  </object>
  <object type="Package" os_index="1" cpuset="2" complete_cpuset="2" nodeset="2"
          complete_nodeset="2">
    <object type="NUMANode" os_index="1" cpuset="2" complete_cpuset="2" nodeset="2"
            complete_nodeset="2" local_memory="1073741824"/>
    <object type="PU" os_index="1" cpuset="2" complete_cpuset="2" nodeset="2" complete_nodeset="2"/>
    <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[90-9f]">
      <object type="PCIDev" pci_busid="0000:97:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1"
              pci_link_speed="0"/>
      <object type="PCIDev" pci_busid="0000:98:00.0" pci_type="0108 [144d:a80a] [144d:a801] 00"
              pci_link_speed="0">
        <object type="OSDev" name="nvme1n1" osdev_type="0">
          <info name="LinuxDeviceID" value="259:3"/>
        </object>
      </object>
    </object>
  </object>
  <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[c0-cf]">
    <object type="PCIDev" pci_busid="0000:c1:00.0" pci_type="0108 [144d:a80a] [144d:a801] 00"
            pci_link_speed="0">
      <object type="OSDev" name="nvme2n1" osdev_type="0">
        <info name="LinuxDeviceID" value="259:6"/>
      </object>
    </object>
  </object>
</object>
</topology>
)";

TEST(Topology, KnowsTheNodesNearDevices) {
  const TopologySource source{.xml = kMachine, .devices = Devices::read};
  const Topology machine = read_topology(source);
  ASSERT_EQ(machine.nodes.size(), 2U);
  EXPECT_NE(machine.nodes[0].package, machine.nodes[1].package);
  EXPECT_THAT(machine.nodes_near("0000:17:00.0"), ElementsAre(NodeIndex{0}));
  EXPECT_THAT(machine.nodes_near("00000000:97:00.0"), ElementsAre(NodeIndex{1}));
  EXPECT_THAT(machine.nodes_near("259:0"), ElementsAre(NodeIndex{0}));
  EXPECT_THAT(machine.nodes_near("259:3"), ElementsAre(NodeIndex{1}));
  EXPECT_THAT(machine.nodes_near("259:6"), IsEmpty());  // it hangs on the whole machine
  EXPECT_THAT(machine.nodes_near("0000:55:00.0"), IsEmpty());
  EXPECT_THAT(read_topology({.xml = kMachine}).devices, IsEmpty());
}

TEST(Topology, AProcessorWhoseCoreTheSystemDoesNotTellIsACoreOfItsOwn) {
  const Topology machine = read_topology({.xml = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
<object type="Machine" os_index="0" cpuset="7" complete_cpuset="7" allowed_cpuset="7"
        nodeset="1" complete_nodeset="1" allowed_nodeset="1">
  <object type="NUMANode" os_index="0" cpuset="7" complete_cpuset="7" nodeset="1"
          complete_nodeset="1" local_memory="1073741824"/>
  <object type="PU" os_index="0" cpuset="1" complete_cpuset="1" nodeset="1" complete_nodeset="1"/>
  <object type="Core" os_index="1" cpuset="6" complete_cpuset="6" nodeset="1" complete_nodeset="1">
    <object type="PU" os_index="1" cpuset="2" complete_cpuset="2" nodeset="1" complete_nodeset="1"/>
    <object type="PU" os_index="2" cpuset="4" complete_cpuset="4" nodeset="1" complete_nodeset="1"/>
  </object>
</object>
</topology>
)"});
  ASSERT_EQ(machine.cores.size(), 2U);
  EXPECT_THAT(machine.cores[0].processors, ElementsAre(ProcessorIndex{1}, ProcessorIndex{2}));
  EXPECT_THAT(machine.cores[1].processors, ElementsAre(ProcessorIndex{0}));
}

TEST(Topology, RefusesATextThatIsNoMachine) {
  EXPECT_THROW((void)read_topology({.xml = "<topology version=\"2.0\"><object"}), Error);
}

TEST(NodeOfPciDevice, ReadsWhatTheFirmwareSays) {
  const TemporaryDirectory root;
  root.write("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  root.write("sys/bus/pci/devices/0000:5e:00.0/numa_node", "-1\n");
  root.write("sys/bus/pci/devices/0000:6f:00.0/vendor", "0x10de\n");
  EXPECT_EQ(node_of_pci_device("0000:3b:00.0", root.path()), NodeIndex{1});
  EXPECT_EQ(node_of_pci_device("0000:3B:00.0", root.path()), NodeIndex{1});
  EXPECT_EQ(node_of_pci_device("00000000:3B:00.0", root.path()), NodeIndex{1});
  EXPECT_FALSE(node_of_pci_device("0000:5e:00.0", root.path()).has_value());
  EXPECT_FALSE(node_of_pci_device("0000:6f:00.0", root.path()).has_value());
}

TEST(NodeOfPciDevice, RefusesADeviceThatIsNotThere) {
  const TemporaryDirectory root;
  root.write("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  for (const std::string_view id : {"", "0000:3b:00.1", "..", "../devices/0000:3b:00.0", "gpu0"}) {
    EXPECT_THROW((void)node_of_pci_device(id, root.path()), Error) << id;
  }
}

}  // namespace
}  // namespace spillway::topology_test
