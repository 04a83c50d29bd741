// Topology: the processors, caches and memory nodes of this machine that this process may use. Read
// once at start by hwloc, then a plain value.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/units.hpp"

namespace spillway {

/// A hardware thread, by the kernel's number (cpu0 is 0).
using ProcessorIndex = Strong<struct ProcessorIndexTag, std::uint32_t>;
/// A NUMA node, by the kernel's number.
using NodeIndex = Strong<struct NodeIndexTag, std::uint32_t>;

/// Describes a physical core; `processors` holds only those that this process may use, in kernel
/// order.
struct Core {
  NodeIndex node;
  std::vector<ProcessorIndex> processors;
};

struct NumaNode {
  NodeIndex index;
  std::uint32_t package = 0;               ///< nodes of one socket are nearer to each other
  Bytes memory;                            ///< 0 where the system does not say
  std::vector<ProcessorIndex> processors;  ///< usable ones
};

/// A device that is nearer to some nodes than to others.
struct IoDevice {
  std::string name;  ///< "0000:3b:00.0" on the PCI bus, "259:0" of a drive: its number in Linux
  std::vector<NodeIndex> nodes;
};

struct Topology {
  std::string cpu_model;          ///< "AMD EPYC 9B14 96-Core Processor", or "unknown"
  std::vector<NumaNode> nodes;    ///< every node that the process may allocate on; at least one
  std::vector<Core> cores;        ///< with at least one usable processor, in machine order; a
                                  ///< processor that the system does not describe is one, too
  Bytes l2_bytes;                 ///< of one cache; 0 where unknown
  Bytes l3_bytes;                 ///< of one cache; 0 where unknown
  std::uint32_t l3_caches = 0;    ///< reachable from the usable processors
  std::vector<IoDevice> devices;  ///< those of PCI and drives, if they were asked for

  /// Number of hardware threads that affinity and cpuset leave to this process.
  [[nodiscard]] std::size_t usable_processors() const;
  /// Returns the nodes nearest to a device; none where they are unknown. A PCI bus id may be in
  /// either case and have a domain of eight digits, as CUDA prints it.
  [[nodiscard]] std::vector<NodeIndex> nodes_near(std::string_view device) const;
};

/// Whether to look for devices, which takes some milliseconds more.
enum class Devices : std::uint8_t { leave_out, read };

/// Where to read from. The default is this machine and this thread's affinity.
struct TopologySource {
  /// It holds hwloc's synthetic description ("node:2 l3:1 core:4 pu:2") in place of the machine,
  /// for tests and for planning for another machine.
  std::optional<std::string> synthetic = std::nullopt;
  /// It holds what `lstopo machine.xml` has written, likewise.
  std::optional<std::string> xml = std::nullopt;
  Devices devices = Devices::leave_out;
};

/// Call before worker threads are bound. Throws `Error` naming what hwloc refused.
[[nodiscard]] Topology read_topology(const TopologySource& source = {});

/// Returns the node nearest to the PCI device `bus_id` ("0000:3b:00.0", as CUDA prints it, in
/// either case). Absent where the firmware does not say, which is usual in virtual machines. Reads
/// `root`/sys. Throws `Error{invalid_argument}` if there is no such device.
[[nodiscard]] std::optional<NodeIndex> node_of_pci_device(std::string_view bus_id,
                                                          const std::filesystem::path& root = "/");

}  // namespace spillway
