// Limits as machines and containers really show them, in trees of files below a root of our own.
#include "runtime/base/memory_budget.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "runtime/base/error.hpp"
#include "tests/support/temporary_directory.hpp"

namespace spillway::memory_budget_test {
namespace {

using test_support::TemporaryDirectory;

class MemoryBudgetTest : public ::testing::Test {
 protected:
  MemoryBudgetTest() {
    machine_.write("proc/meminfo",
                   "MemTotal:       16777216 kB\nMemFree:         1000000 kB\n"
                   "MemAvailable:    8388608 kB\nBuffers:            6004 kB\n");
    machine_.write(
        "proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max file size             unlimited            unlimited            bytes     \n"
        "Max locked memory         8388608              16777216             bytes     \n");
  }

  void mount_v2(std::string_view group, std::string_view mount_root = "/") {
    machine_.write("proc/self/cgroup", "0::" + std::string(group) + "\n");
    machine_.write("proc/self/mountinfo",
                   "22 1 0:20 / /proc rw,nosuid - proc proc rw\n"
                   "31 23 0:28 " +
                       std::string(mount_root) +
                       " /sys/fs/cgroup rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void mount_v1(std::string_view group, std::string_view mount_root = "/") {
    machine_.write("proc/self/cgroup", "9:name=systemd:/x\n5:cpu,cpuacct:/y\n4:memory:" +
                                           std::string(group) + "\n0::/unified\n");
    machine_.write("proc/self/mountinfo",
                   "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
                   "35 31 0:32 " +
                       std::string(mount_root) +
                       " /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n");
  }
  [[nodiscard]] MemoryBudget read() const { return read_memory_budget(machine_.path()); }

  TemporaryDirectory machine_;
};

TEST_F(MemoryBudgetTest, WithoutCgroupsTheMachineIsTheLimit) {
  const MemoryBudget budget = read();
  EXPECT_EQ(budget.total(), 16_GiB);
  EXPECT_EQ(budget.available(), 8_GiB);
  EXPECT_FALSE(budget.tightest_cgroup.has_value());
  EXPECT_EQ(budget.lockable, 8_MiB);
  EXPECT_EQ(budget.describe(), "16.0 GiB of memory, 8.00 GiB available");
}

// As GH200 shows itself: of 16 GiB, 6 are the GPU's.
TEST_F(MemoryBudgetTest, NodesWithoutProcessorsAreTheMemoryOfDevices) {
  const std::string nodes = "sys/devices/system/node/";
  machine_.write(nodes + "node0/cpulist", "0-71\n");
  machine_.write(nodes + "node0/meminfo", "Node 0 MemTotal:       10485760 kB\n");
  machine_.write(nodes + "node1/cpulist", "\n");
  machine_.write(nodes + "node1/meminfo",
                 "Node 1 MemTotal:        6291456 kB\nNode 1 MemFree:         5242880 kB\n"
                 "Node 1 Active(file):     524288 kB\nNode 1 Inactive(file):   262144 kB\n"
                 "Node 1 Mapped:           111111 kB\nNode 1 SReclaimable:     262144 kB\n");
  machine_.write(nodes + "node10/cpulist", "\n");  // nothing is there yet
  machine_.write(nodes + "node10/meminfo", "Node 10 MemTotal:             0 kB\n");
  machine_.write(nodes + "possible", "0-10\n");
  const MemoryBudget budget = read();
  EXPECT_EQ(budget.total(), 10_GiB);
  EXPECT_EQ(budget.available(), 2_GiB);
}

TEST_F(MemoryBudgetTest, TellsWhatTheProcessHasOfIt) {
  EXPECT_EQ(read().own, Bytes{});
  machine_.write("proc/self/status",
                 "VmRSS:\t 1048576 kB\nRssAnon:\t  524288 kB\nRssFile:\t  262144 kB\n"
                 "RssShmem:\t  262144 kB\n");
  EXPECT_EQ(read().own, 768_MiB);
}

TEST_F(MemoryBudgetTest, KnowsTheKernelOfWindowsSubsystemForLinux) {
  EXPECT_FALSE(read().wsl);
  machine_.write("proc/sys/kernel/osrelease", "6.8.0-1021-azure\n");
  EXPECT_FALSE(read().wsl);
  for (const char* const release :
       {"5.15.153.1-microsoft-standard-WSL2\n", "4.4.0-19041-Microsoft\n"}) {
    machine_.write("proc/sys/kernel/osrelease", release);
    EXPECT_TRUE(read().wsl) << release;
  }
}

TEST_F(MemoryBudgetTest, UnlimitedLockedMemoryIsNoLimit) {
  machine_.write(
      "proc/self/limits",
      "Max locked memory         unlimited            unlimited            bytes     \n");
  EXPECT_FALSE(read().lockable.has_value());
}

TEST_F(MemoryBudgetTest, V2TakesTheTightestLevelUpToTheRoot) {
  mount_v2("/user.slice/job/inner");
  machine_.write("sys/fs/cgroup/user.slice/job/inner/memory.max", "max\n");
  machine_.write("sys/fs/cgroup/user.slice/job/memory.max", "4294967296\n");
  machine_.write("sys/fs/cgroup/user.slice/job/memory.current", "1073741824\n");
  machine_.write("sys/fs/cgroup/user.slice/memory.max", "8589934592\n");
  const MemoryBudget budget = read();
  EXPECT_EQ(budget.total(), 4_GiB);
  EXPECT_EQ(budget.available(), 3_GiB);
  ASSERT_TRUE(budget.tightest_cgroup.has_value());
  EXPECT_TRUE(budget.tightest_cgroup->file.ends_with("user.slice/job/memory.max"));
  EXPECT_NE(budget.describe().find("limited by the cgroup"), std::string::npos);
}

TEST_F(MemoryBudgetTest, TheLevelWithTheLeastLeftMayNotBeTheOneWithTheLeastLimit) {
  mount_v2("/a/b");
  machine_.write("sys/fs/cgroup/a/b/memory.max", "4294967296\n");
  machine_.write("sys/fs/cgroup/a/b/memory.current", "0\n");
  machine_.write("sys/fs/cgroup/a/memory.max", "8589934592\n");
  machine_.write("sys/fs/cgroup/a/memory.current", "7516192768\n");  // siblings use 7 of 8 GiB
  const MemoryBudget budget = read();
  EXPECT_EQ(budget.total(), 4_GiB);
  EXPECT_EQ(budget.available(), 1_GiB);
}

TEST_F(MemoryBudgetTest, ReclaimablePageCacheIsAvailable) {
  mount_v2("/a");
  machine_.write("sys/fs/cgroup/a/memory.max", "4294967296\n");
  machine_.write("sys/fs/cgroup/a/memory.current", "4294967296\n");
  machine_.write("sys/fs/cgroup/a/memory.stat",
                 "anon 1\nfile 5\nactive_file 77\ninactive_file 3221225472\n");
  EXPECT_EQ(read().available(), 3_GiB);
}

TEST_F(MemoryBudgetTest, V2HighIsALimitToo) {
  mount_v2("/a");
  machine_.write("sys/fs/cgroup/a/memory.max", "4294967296\n");
  machine_.write("sys/fs/cgroup/a/memory.high", "2147483648\n");
  const MemoryBudget budget = read();
  EXPECT_EQ(budget.total(), 2_GiB);
  EXPECT_TRUE(budget.tightest_cgroup->file.ends_with("memory.high"));
}

TEST_F(MemoryBudgetTest, V1TakesTheMemoryControllerAndKnowsItsWordForNoLimit) {
  mount_v1("/docker/abc");
  machine_.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  machine_.write("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "9223372036854771712\n");
  machine_.write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1073741824\n");
  machine_.write("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "805306368\n");
  machine_.write("sys/fs/cgroup/memory/docker/abc/memory.stat",
                 "inactive_file 1\ntotal_inactive_file 268435456\n");
  const MemoryBudget budget = read();
  EXPECT_EQ(budget.total(), 1_GiB);
  EXPECT_EQ(budget.available(), 512_MiB);
}

TEST_F(MemoryBudgetTest, V1WithoutALimitIsNoLimit) {
  mount_v1("/docker");
  machine_.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  machine_.write("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(read().tightest_cgroup.has_value());
}

// In a container the mount shows the container's own group as its root.
TEST_F(MemoryBudgetTest, AMountOfASubtreeIsReadFromItsRoot) {
  mount_v1("/docker/abc", "/docker/abc");
  machine_.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
  EXPECT_EQ(read().total(), 2_GiB);
  mount_v1("/docker/abc/inner", "/docker/abc");
  machine_.write("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(read().total(), 1_GiB);
  mount_v1("/docker/abcdef", "/docker/abc");  // shares the letters, not the group
  machine_.write("sys/fs/cgroup/memory/def/memory.limit_in_bytes", "536870912\n");
  EXPECT_EQ(read().total(), 2_GiB);
}

TEST_F(MemoryBudgetTest, GarbageAndMissingFilesAreNoLimit) {
  mount_v2("/a");
  EXPECT_EQ(read().total(), 16_GiB);
  machine_.write("sys/fs/cgroup/a/memory.max", "many\n");
  EXPECT_EQ(read().total(), 16_GiB);
  machine_.write("proc/self/mountinfo", "nonsense\n - \n1 2 3 - cgroup2\n");
  EXPECT_EQ(read().total(), 16_GiB);
}

TEST_F(MemoryBudgetTest, ALimitThatCannotBeReadIsNoneAndToldToTheUser) {
  mount_v2("/job");
  machine_.write("sys/fs/cgroup/job/memory.current", "0\n");
  // Nothing is mapped at its beginning: to read it is an I/O error.
  std::filesystem::create_symlink("/proc/self/mem",
                                  machine_.path() / "sys/fs/cgroup/job/memory.max");
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(read().tightest_cgroup.has_value());
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("sys/fs/cgroup/job/memory.max: Input/output error (errno 5): memory is "
                      "planned without"),
            std::string::npos)
      << told;
}

TEST_F(MemoryBudgetTest, ALimitAboveTheMachineDoesNotRaiseIt) {
  mount_v2("/a");
  machine_.write("sys/fs/cgroup/a/memory.max", "1099511627776\n");
  EXPECT_EQ(read().total(), 16_GiB);
  EXPECT_EQ(read().available(), 8_GiB);
}

TEST_F(MemoryBudgetTest, AMachineThatDoesNotTellItsMemoryIsAnError) {
  machine_.write("proc/meminfo", "MemTotal: 5 kB\n");
  EXPECT_THROW((void)read(), Error);
  std::filesystem::remove(machine_.path() / "proc/meminfo");
  EXPECT_THROW((void)read(), Error);
}

TEST(MemoryBudget, ReadsThisMachine) {
  const MemoryBudget budget = read_memory_budget();
  EXPECT_GT(budget.total(), 64_MiB);
  EXPECT_LE(budget.available(), budget.total());
  EXPECT_LE(budget.total(), budget.physical);
  rlimit locked{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &locked), 0);
  if (locked.rlim_cur == RLIM_INFINITY) {
    EXPECT_FALSE(budget.lockable.has_value());
  } else {
    EXPECT_EQ(budget.lockable, Bytes{locked.rlim_cur});
  }
}

}  // namespace
}  // namespace spillway::memory_budget_test
