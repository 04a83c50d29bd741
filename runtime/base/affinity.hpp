// Which part of a machine is whose: the cores and the drives of the ranks that share it. What
// chooses is pure; `ThreadBinding` and `drive_of` ask the system. Any thread.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/topology.hpp"

namespace spillway {

/// A rank's part of the cores.
struct CoreShare {
  NodeIndex home;           ///< the node of its GPU, or the first of its nodes
  std::vector<Core> cores;  ///< none: there are more ranks than cores, and nobody is bound
};

/// Shares out the usable cores of `machine` among ranks, of which the k-th has a GPU near the nodes
/// `near[k]`; none: it has no GPU, or its place is unknown. A rank is at home at the node of its
/// GPU; ranks without are spread over the nodes in order. Ranks of one node split its cores. A node
/// that is home to no rank is split by the ranks of its package, else by all: its memory is as fast
/// as the others'.
[[nodiscard]] std::vector<CoreShare> share_cores(const Topology& machine,
                                                 std::span<const std::vector<NodeIndex>> near);

/// Where a directory's files lie.
struct Drive {
  dev_t file_system = 0;
  dev_t disk = 0;  ///< which holds it; `file_system` where there is none (memory, network)
  std::vector<std::string> devices;  ///< by name as in `IoDevice`; all that the disk is made of
};

/// Returns `directory`, or the nearest one above it that exists.
[[nodiscard]] std::filesystem::path nearest_existing(std::filesystem::path directory);
/// Returns the device of the file system that holds an existing directory.
[[nodiscard]] dev_t file_system_of(const std::filesystem::path& directory);

/// Returns the drive of a file system. Reads `root`/sys; looks through partitions, LVM, RAID and
/// multipath of NVMe.
[[nodiscard]] Drive drive_of(dev_t file_system, const std::filesystem::path& root = "/");

/// Returns which of `drives` each rank takes, by index and in order. `homes` are the ranks' nodes,
/// `drives[d]` the nodes near drive d. Any two drives serve numbers of ranks that differ by one at
/// most; within that a rank takes the nearest. More drives than ranks: all are taken.
[[nodiscard]] std::vector<std::vector<std::size_t>> share_drives(
    const Topology& machine, std::span<const NodeIndex> homes,
    std::span<const std::vector<NodeIndex>> drives);

/// Keeps the thread that makes it, and those that it starts, on some cores. The thread may run
/// where it could before when the binding goes; threads that it has started stay.
class ThreadBinding {
 public:
  explicit ThreadBinding(std::span<const Core> cores);
  ~ThreadBinding();
  ThreadBinding(const ThreadBinding&) = delete;
  ThreadBinding& operator=(const ThreadBinding&) = delete;

  /// Whether the system has agreed. A binding is a hint: nothing but speed depends on it.
  [[nodiscard]] bool holds() const { return holds_; }

 private:
  pid_t thread_;
  cpu_set_t before_;
  bool holds_ = false;
};

}  // namespace spillway
