// MemoryBudget: how much host memory this process may use, by the machine, by its cgroups (v1 and
// v2, every level up to the root) and by RLIMIT_MEMLOCK. The only reader of those files. NUMA nodes
// without processors are not counted: they are the memory of devices.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "runtime/base/units.hpp"

namespace spillway {

/// Describes the cgroup level that leaves this process least.
struct CgroupMemory {
  Bytes limit;
  Bytes available;   ///< limit less what is in use and cannot be reclaimed from the page cache
  std::string file;  ///< that sets the limit, for messages
};

struct MemoryBudget {
  Bytes physical;            ///< of the machine
  Bytes physical_available;  ///< what the kernel says can be had without swapping
  /// It is absent without a limit. The levels with the smallest limit and with the least left may
  /// differ.
  std::optional<CgroupMemory> tightest_cgroup;  ///< by limit
  std::optional<CgroupMemory> scarcest_cgroup;  ///< by what is available
  std::optional<Bytes> lockable;                ///< RLIMIT_MEMLOCK; absent: unlimited
  Bytes own{};       ///< what this process has of it: pages that are of no file
  bool wsl = false;  ///< the kernel is that of the Windows Subsystem for Linux

  /// Returns the smaller of machine and cgroup.
  [[nodiscard]] Bytes total() const;
  [[nodiscard]] Bytes available() const;
  /// Returns, for messages, "62.8 GiB of memory, 48.1 GiB available, limited by the cgroup (FILE)".
  [[nodiscard]] std::string describe() const;
};

/// Reads `root`/proc and the cgroup mounts that it names, below `root` as well, so that tests bring
/// their own. Throws `Error` if the machine's memory cannot be read; a missing cgroup is no limit.
[[nodiscard]] MemoryBudget read_memory_budget(const std::filesystem::path& root = "/");

}  // namespace spillway
