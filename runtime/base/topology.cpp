#include "runtime/base/topology.hpp"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <memory>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/mutex.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;

struct FreeTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using TopologyHandle = std::unique_ptr<hwloc_topology, FreeTopology>;

struct FreeBitmap {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

[[noreturn]] void fail(std::string_view what) {
  throw Error(ErrorCode::internal, fmt::format("hwloc cannot {}", what), errno);
}

/// Reading devices takes plugins of hwloc's, which go with the last topology. What the libraries
/// that they use have allocated would be lost with them: a topology that is never freed keeps them.
void keep_plugins() {
  [[maybe_unused]] static const hwloc_topology_t kept = [] {
    hwloc_topology_t topology = nullptr;
    return hwloc_topology_init(&topology) == 0 ? topology : nullptr;
  }();
}

/// Ranks may be threads, and libudev, which hwloc reads devices with, keeps state of the process's.
TopologyHandle load(const TopologySource& source) {
  static Mutex one_at_a_time;
  const Lock lock(one_at_a_time);
  if (source.devices == Devices::read) keep_plugins();
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) fail("start");
  TopologyHandle topology(raw);
  if (source.synthetic.has_value() &&
      hwloc_topology_set_synthetic(raw, source.synthetic->c_str()) != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("\"{}\" is not a machine; write for example \"node:2 core:4 pu:2\"",
                            *source.synthetic));
  }
  if (source.xml.has_value() &&
      hwloc_topology_set_xmlbuffer(raw, source.xml->c_str(),
                                   static_cast<int>(source.xml->size()) + 1) != 0) {
    throw Error(ErrorCode::invalid_argument,
                "the text is not a machine; give what \"lstopo machine.xml\" writes");
  }
  if (source.devices == Devices::read) {
    hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  }
  if (hwloc_topology_load(raw) != 0) {
    fail("read the machine's topology: see whether lstopo can, or what /sys/devices/system lacks");
  }
  return topology;
}

/// What this thread's affinity leaves to us, which the kernel keeps within that of the cpuset
/// cgroup. Another machine, or a system that cannot tell, has no binding.
Bitmap usable_set(hwloc_topology_t topology) {
  Bitmap usable(hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topology)));
  const Bitmap bound(hwloc_bitmap_alloc());
  if (usable == nullptr || bound == nullptr) fail("allocate a processor set");
  if (hwloc_topology_is_thissystem(topology) != 0 &&
      hwloc_get_cpubind(topology, bound.get(), HWLOC_CPUBIND_THREAD) == 0) {
    hwloc_bitmap_copy(usable.get(), bound.get());
  }
  check(hwloc_bitmap_iszero(usable.get()) == 0, ErrorCode::internal,
        "no processor is left by affinity and cpuset");
  return usable;
}

std::vector<ProcessorIndex> processors_in(hwloc_const_cpuset_t set, hwloc_const_cpuset_t usable) {
  std::vector<ProcessorIndex> found;
  for (int index = hwloc_bitmap_next(set, -1); index >= 0; index = hwloc_bitmap_next(set, index)) {
    if (hwloc_bitmap_isset(usable, static_cast<unsigned>(index)) != 0) {
      found.emplace_back(static_cast<std::uint32_t>(index));
    }
  }
  return found;
}

std::vector<NumaNode> read_nodes(hwloc_topology_t topology, hwloc_const_cpuset_t usable) {
  std::vector<NumaNode> nodes;
  hwloc_obj_t node = nullptr;
  while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr) {
    const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, node);
    nodes.push_back({.index = NodeIndex{node->os_index},
                     .package = package == nullptr ? 0 : package->logical_index,
                     .memory = Bytes{node->attr->numanode.local_memory},
                     .processors = processors_in(node->cpuset, usable)});
  }
  return nodes;
}

std::vector<Core> read_cores(hwloc_topology_t topology, hwloc_const_cpuset_t usable,
                             const std::vector<NumaNode>& nodes) {
  const auto node_of = [&](ProcessorIndex processor) {
    for (const NumaNode& node : nodes) {
      if (std::ranges::find(node.processors, processor) != node.processors.end()) return node.index;
    }
    return nodes.front().index;
  };
  std::vector<Core> cores;
  std::vector<ProcessorIndex> rest = processors_in(usable, usable);
  const auto add = [&](std::vector<ProcessorIndex> processors) {
    if (processors.empty()) return;
    std::erase_if(rest, [&](ProcessorIndex each) {
      return std::ranges::find(processors, each) != processors.end();
    });
    const NodeIndex node = node_of(processors.front());
    cores.push_back({.node = node, .processors = std::move(processors)});
  };
  // Some virtual machines describe processors and no cores: each is then a core of its own.
  const bool has_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr) {
    add(processors_in(object->cpuset, usable));
  }
  if (rest.empty()) return cores;
  static std::once_flag told;
  std::call_once(told, [&] {
    log_warning(
        "{} of {} processors count as a core each, since the system does not tell their cores "
        "(/sys/devices/system/cpu, cpuset.cpus of the cgroup)",
        rest.size(), hwloc_bitmap_weight(usable));
  });
  for (const ProcessorIndex processor : std::vector(rest)) add({processor});
  return cores;
}

struct Caches {
  Bytes bytes;
  std::uint32_t count = 0;
};

/// Reads, of a heterogeneous machine, the smallest, which is what a blocking factor must fit.
Caches read_caches(hwloc_topology_t topology, hwloc_obj_type_t type, hwloc_const_cpuset_t usable) {
  Caches caches;
  hwloc_obj_t cache = nullptr;
  while ((cache = hwloc_get_next_obj_by_type(topology, type, cache)) != nullptr) {
    if (hwloc_bitmap_intersects(cache->cpuset, usable) == 0) continue;
    const Bytes size{cache->attr->cache.size};
    caches.bytes = caches.count == 0 ? size : std::min(caches.bytes, size);
    ++caches.count;
  }
  return caches;
}

std::vector<NodeIndex> nodes_around(hwloc_topology_t topology, hwloc_obj_t device) {
  const hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(topology, device);
  // What hangs on the whole machine is as far from every node as the firmware says.
  if (place == nullptr || place == hwloc_get_root_obj(topology)) return {};
  std::vector<NodeIndex> nodes;
  for (int node = hwloc_bitmap_next(place->nodeset, -1); node >= 0;
       node = hwloc_bitmap_next(place->nodeset, node)) {
    nodes.emplace_back(static_cast<std::uint32_t>(node));
  }
  return nodes;
}

std::vector<IoDevice> read_devices(hwloc_topology_t topology) {
  std::vector<IoDevice> devices;
  hwloc_obj_t device = nullptr;
  while ((device = hwloc_get_next_pcidev(topology, device)) != nullptr) {
    const auto& id = device->attr->pcidev;
    devices.push_back({fmt::format("{:04x}:{:02x}:{:02x}.{:x}", id.domain, id.bus, id.dev, id.func),
                       nodes_around(topology, device)});
  }
  while ((device = hwloc_get_next_osdev(topology, device)) != nullptr) {
    const char* const number = hwloc_obj_get_info_by_name(device, "LinuxDeviceID");
    if (number != nullptr) devices.push_back({number, nodes_around(topology, device)});
  }
  return devices;
}

/// The kernel's name of a PCI device: CUDA's management library prints a domain of eight digits.
std::string kernel_name(std::string_view bus_id) {
  std::string name(bus_id);
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name.size() == 16 && name.starts_with("0000")) name.erase(0, 4);
  return name;
}

std::string read_cpu_model(hwloc_topology_t topology) {
  for (const hwloc_obj_type_t type : {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_MACHINE}) {
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr) {
      const char* const model = hwloc_obj_get_info_by_name(object, "CPUModel");
      if (model != nullptr) return model;
    }
  }
  return "unknown";
}

}  // namespace

std::size_t Topology::usable_processors() const {
  std::size_t count = 0;
  for (const Core& core : cores) count += core.processors.size();
  return count;
}

std::vector<NodeIndex> Topology::nodes_near(std::string_view device) const {
  const auto found = std::ranges::find(devices, kernel_name(device), &IoDevice::name);
  return found == devices.end() ? std::vector<NodeIndex>{} : found->nodes;
}

Topology read_topology(const TopologySource& source) {
  const TopologyHandle handle = load(source);
  hwloc_topology_t topology = handle.get();
  const Bitmap usable = usable_set(topology);
  Topology machine;
  machine.cpu_model = read_cpu_model(topology);
  machine.nodes = read_nodes(topology, usable.get());
  check(!machine.nodes.empty(), ErrorCode::internal, "hwloc found no memory node");
  machine.cores = read_cores(topology, usable.get(), machine.nodes);
  machine.l2_bytes = read_caches(topology, HWLOC_OBJ_L2CACHE, usable.get()).bytes;
  const Caches l3 = read_caches(topology, HWLOC_OBJ_L3CACHE, usable.get());
  machine.l3_bytes = l3.bytes;
  machine.l3_caches = l3.count;
  if (source.devices == Devices::read) machine.devices = read_devices(topology);
  return machine;
}

std::optional<NodeIndex> node_of_pci_device(std::string_view bus_id, const fs::path& root) {
  const std::string name = kernel_name(bus_id);
  // Nothing that could lead out of the directory.
  const bool plain =
      name.find_first_not_of("0123456789abcdef:.") == name.npos && name.find(':') != name.npos;
  const fs::path device = root / "sys/bus/pci/devices" / name;
  check(plain && fs::exists(device), ErrorCode::invalid_argument,
        fmt::format("there is no PCI device \"{}\" in {}", bus_id, device.parent_path().string()));
  const fs::path file = device / "numa_node";
  if (!fs::exists(file)) return std::nullopt;  // a kernel without NUMA
  const std::string text = read_text_file(file, 4_KiB);
  int node = -1;
  std::from_chars(text.data(), text.data() + text.size(), node);
  if (node < 0) return std::nullopt;
  return NodeIndex{static_cast<std::uint32_t>(node)};
}

}  // namespace spillway
