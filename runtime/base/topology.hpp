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

/// Is a hardware thread, by the number the kernel knows it by (cpu0 is 0).
using ProcessorIndex = Strong<struct ProcessorIndexTag, std::uint32_t>;
/// Is a NUMA node, by the number the kernel knows it by.
using NodeIndex = Strong<struct NodeIndexTag, std::uint32_t>;

/// Describes a physical core; `processors` holds only those that this process may use, in kernel
/// order.
struct Core {
  NodeIndex node;
  std::vector<ProcessorIndex> processors;
};

struct NumaNode {
  NodeIndex index;
  Bytes memory;                            ///< 0 where the system does not say
  std::vector<ProcessorIndex> processors;  ///< usable ones
};

struct Topology {
  std::string cpu_model;        ///< "AMD EPYC 9B14 96-Core Processor", or "unknown"
  std::vector<NumaNode> nodes;  ///< every node that the process may allocate on; at least one
  std::vector<Core> cores;      ///< with at least one usable processor, in machine order
  Bytes l2_bytes;               ///< of one cache; 0 where unknown
  Bytes l3_bytes;               ///< of one cache; 0 where unknown
  std::uint32_t l3_caches = 0;  ///< reachable from the usable processors

  /// Returns the number of hardware threads that affinity and cpuset leave to this process.
  [[nodiscard]] std::size_t usable_processors() const;
};

/// Says where to read from. The default is this machine and this thread's affinity.
struct TopologySource {
  /// It holds hwloc's synthetic description ("node:2 l3:1 core:4 pu:2") in place of the machine,
  /// for tests and for planning for another machine.
  std::optional<std::string> synthetic = std::nullopt;
};

/// Call before worker threads are bound. Throws `Error` naming what hwloc refused.
[[nodiscard]] Topology read_topology(const TopologySource& source = {});

/// Returns the node nearest to the PCI device `bus_id` ("0000:3b:00.0", as CUDA prints it, in
/// either case). Absent where the firmware does not say, which is usual in virtual machines. Reads
/// `root`/sys. Throws `Error{invalid_argument}` if there is no such device.
[[nodiscard]] std::optional<NodeIndex> node_of_pci_device(std::string_view bus_id,
                                                          const std::filesystem::path& root = "/");

}  // namespace spillway
