// A kernel that refuses the calls by which an engine submits and collects. The refusal is an error
// of the operations like any other: nothing aborts, hangs or stays in flight.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstddef>
#include <map>
#include <thread>

#include "tests/nvme_swap/test_support.hpp"
#include "tests/support/allocation_counter.hpp"

namespace spillway::nvme_swap::kernel_refusal_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// From here on this thread's `call` fails with `error`. Only for a child process: there is no way
/// back.
bool refuse_call(long call, int error) {
  std::array<sock_filter, 4> program{{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<std::uint32_t>(call)},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

struct Refusal {
  std::string name;
  EngineKind engine;
  std::vector<long> calls;
  std::string named;  // in the error
};

class KernelRefusal : public ::testing::TestWithParam<Refusal> {
 protected:
  static constexpr int kPassed = 7;
  static constexpr int kNoFilters = 8;

  [[nodiscard]] static bool refuse() {
    bool refused = true;
    for (const long call : GetParam().calls) refused = refused && refuse_call(call, EIO);
    return refused;
  }

  /// Runs `work` in a process of its own; it returns whether calls could be refused there.
  template <class Work>
  static void in_a_child(const Work& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      set_log_level(LogLevel::off);
      const bool refused = work();
      ::_exit(HasFailure() ? 1 : refused ? kPassed : kNoFilters);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
    if (WEXITSTATUS(status) == kNoFilters) GTEST_SKIP() << "this kernel has no seccomp filters";
    EXPECT_EQ(WEXITSTATUS(status), kPassed);
  }

  [[nodiscard]] StoreOptions options() const {
    StoreOptions options = small_options(scratch_.path(), 2);
    options.engine = GetParam().engine;
    return options;
  }

  ScratchDirectory scratch_;
};

/// All results of an engine with `count` requests in flight, by tag.
std::map<std::uint64_t, std::int64_t> results_of(IoEngine& engine, std::size_t count) {
  std::map<std::uint64_t, std::int64_t> all;
  std::vector<IoResult> batch(3);
  while (all.size() < count) {
    engine.wait();
    const std::size_t got = engine.poll(batch);
    for (std::size_t i = 0; i < got; ++i) {
      EXPECT_TRUE(all.emplace(batch[i].tag, batch[i].result).second) << "reported twice";
    }
  }
  return all;
}

TEST_P(KernelRefusal, ClosesTheEngineAndEndsEveryRequest) {
  in_a_child([&] {
    const auto path = scratch_.path() / "file";
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_GE(file, 0);
    EXPECT_EQ(::posix_fallocate(file, 0, 8 * kPageBytes), 0);
    static_cast<void>(::fcntl(file, F_SETFL, O_DIRECT));
    PageBuffer buffer(8 * kPageBytes);
    const auto request = [&](std::uint64_t page) {
      return IoRequest{.operation = IoOperation::write,
                       .file = file,
                       .offset = FileOffset{page * kPageBytes},
                       .data = buffer.bytes().data() + page * kPageBytes,
                       .length = kPageBytes,
                       .tag = page};
    };
    const std::vector<int> files{file};
    WakeSignal wake;
    const auto engine =
        make_engine(GetParam().engine, {.files = files, .queue_depth = 4, .wake = &wake});
    const std::vector<IoRequest> taken{request(0), request(1)};
    EXPECT_EQ(engine->submit(taken), 2U);
    if (!refuse()) return false;
    EXPECT_TRUE(engine->failure().empty());
    const std::vector<IoRequest> refused{request(2), request(3)};
    {
      // What has been taken is not lost for want of memory.
      const test_support::AllocationCounter counter;
      EXPECT_EQ(engine->submit(refused), 2U);
      engine->wait();
      EXPECT_EQ(counter.allocations(), 0);
    }
    const auto results = results_of(*engine, 4);
    for (const std::uint64_t page : {0U, 1U}) {
      const std::int64_t result = results.at(page);
      EXPECT_TRUE(result == kPageBytes || result == -EIO) << result;
    }
    EXPECT_THAT(std::string(engine->failure()), HasSubstr(GetParam().named));
    EXPECT_THAT(std::string(engine->failure()), HasSubstr("Input/output error (errno 5)"));
    const std::vector<IoRequest> later{request(4)};
    EXPECT_EQ(engine->submit(later), 1U);
    EXPECT_EQ(results_of(*engine, 1).at(4), -EIO);
    return true;
  });
}

TEST_P(KernelRefusal, IsAnErrorOfTheStoresOperations) {
  {
    const auto store = TileStore::create(options(), layout_of(3, 20_KiB));
    write_step(*store, 1);
    commit_step(*store, 1);
  }
  in_a_child([&] {
    const auto store = TileStore::open(options());
    std::vector<PageBuffer> contents;
    std::vector<Ticket> tickets;
    for (std::uint32_t tile = 0; tile < 3; ++tile) {
      contents.push_back(tile_content(20_KiB, tile, 2));
      const auto bytes = std::as_const(contents.back()).bytes();
      tickets.push_back(store->write(TileIndex{tile}, bytes, checksum_of(bytes)));
      if (tile == 1 && !refuse()) return false;
    }
    // The first is waited for, the others are given up.
    EXPECT_THAT(message_of([&] {
                  for (Ticket& ticket : tickets) ticket.wait();
                  return 0;
                }),
                HasSubstr(GetParam().named));
    tickets.clear();
    PageBuffer target(20 << 10);
    EXPECT_EQ(code_of([&] { return store->read(TileIndex{0}, target.bytes()).wait(), 0; }),
              ErrorCode::io_error);
    return true;
  });
  expect_step(*TileStore::open(options()), 1);
}

TEST_P(KernelRefusal, DuringACommitLeavesOneOfTheTwoSteps) {
  in_a_child([&] {
    const auto store = TileStore::create(options(), layout_of(3, 20_KiB));
    write_step(*store, 1);
    commit_step(*store, 1);
    write_step(*store, 2);
    Ticket commit = store->commit(header_of(2));
    if (!refuse()) return false;
    EXPECT_THAT(message_of([&] { return commit.wait(), 0; }), HasSubstr(GetParam().named));
    EXPECT_THAT(message_of([&] { return store->commit(header_of(3)).wait(), 0; }),
                HasSubstr("closed to writes since its commit failed"));
    return true;
  });
  if (IsSkipped()) return;
  const auto store = TileStore::open(options());
  expect_step(*store, store->committed()->step.value());
}

class KernelRefusalAtTheStart : public KernelRefusal {};

TEST_P(KernelRefusalAtTheStart, LeavesTheStoreToAnotherEngine) {
  in_a_child([&] {
    if (!refuse()) return false;
    EXPECT_EQ(code_of([&] { return make_engine(GetParam().engine, {}); }),
              ErrorCode::not_supported);
    EXPECT_THAT(message_of([&] { return make_engine(GetParam().engine, {}); }),
                AllOf(HasSubstr(GetParam().named), HasSubstr("Input/output error (errno 5)")));
    StoreOptions automatic = options();
    automatic.engine = EngineKind::automatic;
    const auto store = TileStore::create(automatic, layout_of(3, 20_KiB));
    EXPECT_NE(store->engine_name(), "uring");
    write_step(*store, 1);
    commit_step(*store, 1);
    expect_step(*store, 1);
    return true;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Calls, KernelRefusal,
    ::testing::Values(
        Refusal{"uring", EngineKind::uring, {SYS_io_uring_enter}, "io_uring_enter failed"},
        Refusal{
            "aio", EngineKind::aio, {SYS_io_getevents, SYS_io_pgetevents}, "io_getevents failed"}),
    [](const ::testing::TestParamInfo<Refusal>& entry) { return entry.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Calls, KernelRefusalAtTheStart,
    ::testing::Values(
        Refusal{"setup", EngineKind::uring, {SYS_io_uring_setup}, "io_uring_setup"},
        Refusal{"register", EngineKind::uring, {SYS_io_uring_register}, "report its operations"},
        Refusal{"enter", EngineKind::uring, {SYS_io_uring_enter}, "io_uring_enter"}),
    [](const ::testing::TestParamInfo<Refusal>& entry) { return entry.param.name; });

TEST(KernelRefusal, OfWakingTheSubmissionThreadEndsEveryRequest) {
  const pid_t child = ::fork();
  if (child == 0) {
    set_log_level(LogLevel::off);
    const ScratchDirectory scratch;
    const auto path = scratch.path() / "file";
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const std::vector<int> files{file};
    PageBuffer buffer(kPageBytes);
    const std::vector<IoRequest> request{{.operation = IoOperation::write,
                                          .file = file,
                                          .data = buffer.bytes().data(),
                                          .length = kPageBytes}};
    int code = 1;
    {
      const auto engine =
          make_engine(EngineKind::uring,
                      {.files = files, .queue_depth = 4, .uring = {.submission_thread = true}});
      EXPECT_EQ(engine->submit(request), 1U);
      EXPECT_EQ(results_of(*engine, 1).at(0), kPageBytes);
      // The thread goes to sleep after 50 ms.
      std::this_thread::sleep_for(std::chrono::milliseconds{300});
      if (!engine->abilities().submission_thread || !refuse_call(SYS_io_uring_enter, EIO)) {
        code = 8;
      } else {
        EXPECT_EQ(engine->submit(request), 1U);
        EXPECT_EQ(results_of(*engine, 1).at(0), -EIO);
        code = ::testing::Test::HasFailure() ? 1 : 7;
      }
    }
    std::error_code ignored;
    std::filesystem::remove_all(scratch.path(), ignored);
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == 8) GTEST_SKIP() << "this kernel has no submission thread for us";
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

}  // namespace
}  // namespace spillway::nvme_swap::kernel_refusal_test
