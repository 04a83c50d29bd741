#include "runtime/base/memory_budget.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/log.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kTextLimit{4U << 20};
/// cgroup v1 says "no limit" with the largest multiple of a page in a signed 64-bit number.
constexpr std::uint64_t kNoLimitV1 = std::uint64_t{1} << 62;

std::optional<std::string> try_read(const fs::path& path) {
  try {
    if (!is_there(path)) return std::nullopt;
    return read_text_file(path, kTextLimit);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io_error) throw;
    // Files of a cgroup come and go, and some are closed to containers: no limit is known then.
    const int reason = error.native();
    const bool usual = reason == ENOENT || reason == ENODEV || reason == EACCES || reason == EPERM;
    if (!usual) log_warning("{}: memory is planned without what it says", error.what());
    return std::nullopt;
  }
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  while (text.starts_with(' ') || text.starts_with('\t')) text.remove_prefix(1);
  std::uint64_t number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{}) return std::nullopt;
  return number;
}

/// The number after `key` in "key number" lines.
std::optional<std::uint64_t> number_after(std::string_view text, std::string_view key) {
  for (const std::string_view line : split(text, '\n')) {
    if (line.starts_with(key)) return parse_number(line.substr(key.size()));
  }
  return std::nullopt;
}

/// A file that holds one number. "max", garbage and a missing file are no limit.
std::optional<std::uint64_t> number_in(const fs::path& path) {
  const auto text = try_read(path);
  return text.has_value() ? parse_number(*text) : std::nullopt;
}

enum class CgroupVersion : std::uint8_t { v1, v2 };

/// Where the memory controller of one hierarchy is mounted, and which of its groups is ours.
struct Hierarchy {
  CgroupVersion version;
  fs::path mount_point;
  fs::path group;  ///< relative to the mount point
};

bool contains(const std::vector<std::string_view>& parts, std::string_view part) {
  return std::ranges::find(parts, part) != parts.end();
}

/// "/a/b" of a mount whose root is "/a" is "b". A group outside of the mount belongs to a namespace
/// that this process does not see: its own group is then the mount's root.
fs::path relative_group(std::string_view group, std::string_view mount_root) {
  if (mount_root == "/") return fs::path(group).relative_path();
  if (group == mount_root) return {};
  if (group.starts_with(mount_root) && group[mount_root.size()] == '/') {
    return fs::path(group.substr(mount_root.size())).relative_path();
  }
  return {};
}

/// The group in /proc/self/cgroup: lines "number:controllers:path"; v2 has no controllers.
std::optional<std::string_view> group_of(std::string_view text, CgroupVersion version) {
  for (const std::string_view line : split(text, '\n')) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool ours = version == CgroupVersion::v2 ? controllers.empty()
                                                   : contains(split(controllers, ','), "memory");
    if (ours) return line.substr(second + 1);
  }
  return std::nullopt;
}

/// From /proc/self/mountinfo: "id parent device root mount-point options ... - type source super".
std::vector<Hierarchy> memory_hierarchies(const fs::path& root) {
  const auto mounts = try_read(root / "proc/self/mountinfo");
  const auto groups = try_read(root / "proc/self/cgroup");
  std::vector<Hierarchy> found;
  if (!mounts.has_value() || !groups.has_value()) return found;
  for (const std::string_view line : split(*mounts, '\n')) {
    const std::size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    const auto before = split(line.substr(0, dash), ' ');
    const auto after = split(line.substr(dash + 3), ' ');
    if (before.size() < 5 || after.size() < 3) continue;
    const bool v2 = after[0] == "cgroup2";
    const bool v1 = after[0] == "cgroup" && contains(split(after[2], ','), "memory");
    if (!v1 && !v2) continue;
    const CgroupVersion version = v2 ? CgroupVersion::v2 : CgroupVersion::v1;
    const auto group = group_of(*groups, version);
    if (!group.has_value()) continue;
    found.push_back({.version = version,
                     .mount_point = root / fs::path(before[4]).relative_path(),
                     .group = relative_group(*group, before[3])});
  }
  return found;
}

/// What one level of a hierarchy allows, if it limits at all.
std::optional<CgroupMemory> read_level(const fs::path& level, CgroupVersion version) {
  const bool v2 = version == CgroupVersion::v2;
  fs::path file = level / (v2 ? "memory.max" : "memory.limit_in_bytes");
  std::optional<std::uint64_t> limit = number_in(file);
  if (!v2 && limit.has_value() && *limit >= kNoLimitV1) limit.reset();
  if (v2) {
    // Beyond memory.high the kernel reclaims and stalls: as good as a limit.
    const auto high = number_in(level / "memory.high");
    if (high.has_value() && (!limit.has_value() || *high < *limit)) {
      limit = high;
      file = level / "memory.high";
    }
  }
  if (!limit.has_value()) return std::nullopt;
  const std::uint64_t used =
      number_in(level / (v2 ? "memory.current" : "memory.usage_in_bytes")).value_or(0);
  const std::string statistics = try_read(level / "memory.stat").value_or("");
  const std::uint64_t cache =
      number_after(statistics, v2 ? "inactive_file " : "total_inactive_file ").value_or(0);
  const std::uint64_t kept = used - std::min(used, cache);
  return CgroupMemory{.limit = Bytes{*limit},
                      .available = Bytes{*limit - std::min(*limit, kept)},
                      .file = file.string()};
}

void read_cgroups(const fs::path& root, MemoryBudget& budget) {
  for (const Hierarchy& hierarchy : memory_hierarchies(root)) {
    fs::path group = hierarchy.group;
    for (;;) {
      const auto level = read_level(hierarchy.mount_point / group, hierarchy.version);
      if (level.has_value()) {
        auto& tightest = budget.tightest_cgroup;
        auto& scarcest = budget.scarcest_cgroup;
        if (!tightest.has_value() || level->limit < tightest->limit) tightest = level;
        if (!scarcest.has_value() || level->available < scarcest->available) scarcest = level;
      }
      if (group.empty()) break;
      group = group.parent_path();
    }
  }
}

/// Returns the sum of "RssAnon:    51234 kB" and of the same for shared memory.
Bytes read_own(const fs::path& root) {
  const std::string status = try_read(root / "proc/self/status").value_or("");
  const std::uint64_t own =
      number_after(status, "RssAnon:").value_or(0) + number_after(status, "RssShmem:").value_or(0);
  return Bytes{own << 10};
}

/// Returns whether the kernel is one such as "6.6.87.2-microsoft-standard-WSL2".
bool is_wsl(const fs::path& root) {
  std::string release = try_read(root / "proc/sys/kernel/osrelease").value_or("");
  std::ranges::transform(release, release.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return release.find("microsoft") != release.npos;
}

/// Returns whether a list of processors, such as "0-15,32-47", has none.
bool is_empty_list(const std::optional<std::string>& list) {
  return list.has_value() && list->find_first_not_of(" \t\n") == list->npos;
}

/// Leaves out the nodes that have no processors. The memory of a GPU that shares its addresses with
/// the host (GH200) is such a node: the kernel counts it as the machine's, and it is the device's.
void leave_out_nodes_of_devices(const fs::path& root, MemoryBudget& budget) {
  std::error_code ignored;
  for (fs::directory_iterator entry(root / "sys/devices/system/node", ignored);
       !ignored && entry != fs::end(entry); entry.increment(ignored)) {
    if (!is_empty_list(try_read(entry->path() / "cpulist"))) continue;
    const std::string text = try_read(entry->path() / "meminfo").value_or("");
    const std::string name = "Node " + entry->path().filename().string().substr(4) + " ";
    const auto bytes = [&](const char* key) {
      return Bytes{number_after(text, name + key).value_or(0) << 10};
    };
    // The kernel does not say what of a node is available. It is no more than this.
    const Bytes available = bytes("MemFree:") + bytes("Active(file):") + bytes("Inactive(file):") +
                            bytes("SReclaimable:");
    budget.physical -= std::min(budget.physical, bytes("MemTotal:"));
    budget.physical_available -= std::min(budget.physical_available, available);
  }
}

/// "Max locked memory         8388608              8388608              bytes": soft, then hard.
std::optional<Bytes> read_lockable(const fs::path& root) {
  const auto limits = try_read(root / "proc/self/limits");
  if (!limits.has_value()) return std::nullopt;
  const auto number = number_after(*limits, "Max locked memory");
  return number.has_value() ? std::optional(Bytes{*number}) : std::nullopt;
}

}  // namespace

Bytes MemoryBudget::total() const {
  return tightest_cgroup.has_value() ? std::min(physical, tightest_cgroup->limit) : physical;
}

Bytes MemoryBudget::available() const {
  const Bytes machine = std::min(physical_available, physical);
  return scarcest_cgroup.has_value() ? std::min(machine, scarcest_cgroup->available) : machine;
}

std::string MemoryBudget::describe() const {
  std::string text =
      fmt::format("{} of memory, {} available", format_bytes(total()), format_bytes(available()));
  if (tightest_cgroup.has_value() && tightest_cgroup->limit < physical) {
    text += fmt::format(", limited by the cgroup ({})", tightest_cgroup->file);
  }
  return text;
}

MemoryBudget read_memory_budget(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  const std::string text = read_text_file(meminfo, kTextLimit);
  const auto total = number_after(text, "MemTotal:");
  const auto available = number_after(text, "MemAvailable:");
  check(total.has_value() && available.has_value(), ErrorCode::internal,
        fmt::format("{} has no MemTotal or no MemAvailable (Linux 3.14 or newer is needed)",
                    meminfo.string()));
  MemoryBudget budget{.physical = Bytes{*total << 10},
                      .physical_available = Bytes{*available << 10},
                      .tightest_cgroup = std::nullopt,
                      .scarcest_cgroup = std::nullopt,
                      .lockable = read_lockable(root),
                      .own = read_own(root),
                      .wsl = is_wsl(root)};
  leave_out_nodes_of_devices(root, budget);
  read_cgroups(root, budget);
  return budget;
}

}  // namespace spillway
