// A process killed at any instant leaves its last committed step whole.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdio>
#include <thread>

#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap::kill_test {
namespace {

/// Writes the latter tiles of a step ahead of the others, or tiles that no step has and that are
/// given up again.
void speculate(TileStore& store, std::uint64_t step) {
  const auto tiles = static_cast<std::uint32_t>(store.layout().tiles.size());
  const bool kept = step % 2 == 0;
  for (std::uint32_t tile = tiles / 2; tile < tiles; ++tile) {
    const PageBuffer content =
        tile_content(store.layout().tiles[tile], tile, kept ? step : step + 1000);
    store.write(TileIndex{tile}, content.bytes(), checksum_of(content.bytes())).wait();
    if (!kept) store.discard(TileIndex{tile});
  }
}

/// Runs in the child: writes and commits steps for ever, telling each committed one to `pipe`.
[[noreturn]] void run_until_killed(const StoreOptions& options, int pipe) {
  try {
    auto store = TileStore::has_commit(options)
                     ? TileStore::open(options)
                     : TileStore::create(options, {{40_KiB, 4_KiB, 24_KiB, 12_KiB, 64_KiB}});
    std::uint64_t step = store->committed() ? store->committed()->step.value() : 0;
    for (;;) {
      ++step;
      write_step(*store, step);
      commit_step(*store, step);
      if (::write(pipe, &step, sizeof step) != sizeof step) ::_exit(3);
      speculate(*store, step + 1);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
    ::_exit(2);
  }
}

struct Killed {
  std::uint64_t reported = 0;  ///< last step that the child called committed; 0 if none
};

/// Lets a child run for `microseconds` after its first sign of life, or from its start.
Killed run_and_kill(const StoreOptions& options, std::chrono::microseconds time, bool from_start) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    run_until_killed(options, ends[1]);
  }
  ::close(ends[1]);
  pollfd entry{.fd = ends[0], .events = POLLIN, .revents = 0};
  if (!from_start) {
    EXPECT_EQ(::poll(&entry, 1, 20'000), 1);
  }
  std::this_thread::sleep_for(time);
  ::kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";
  Killed result;
  std::uint64_t step = 0;
  while (::read(ends[0], &step, sizeof step) == sizeof step) result.reported = step;
  ::close(ends[0]);
  return result;
}

class KillTest : public ::testing::TestWithParam<EngineKind> {};

TEST_P(KillTest, LeavesTheCommittedStepWhole) {
  constexpr int kKills = 20;
  std::mt19937_64 random(test_seed());
  ScratchDirectory scratch;
  StoreOptions options = small_options(scratch.path(), 2);
  options.lock_patience = std::chrono::milliseconds{10'000};
  options.engine = GetParam();
  std::uint64_t last = 0;
  for (int i = 0; i < kKills; ++i) {
    const std::chrono::microseconds time{random() % 15'000};
    // Some are killed while they start; the first few of those before there is a store.
    const Killed killed = run_and_kill(options, time, i % 4 == 0);
    last = std::max(last, killed.reported);
    if (!TileStore::has_commit(options)) {
      EXPECT_EQ(last, 0U) << "a committed step is gone";
      continue;
    }
    const auto store = TileStore::open(options);
    const std::uint64_t step = store->committed()->step.value();
    EXPECT_GE(step, last) << "a committed step is gone";
    // The commit may have become durable without the child living to tell.
    if (killed.reported > 0) {
      EXPECT_LE(step, killed.reported + 1);
    }
    EXPECT_EQ(store->committed()->payload, header_of(step).payload);
    expect_step(*store, step);
    last = step;
    if (HasFailure()) return;
  }
  // Three of four children lived until they had reported a step, however slow the disk.
  EXPECT_GE(last, 3U * kKills / 4);
}

INSTANTIATE_TEST_SUITE_P(Engines, KillTest, ::testing::ValuesIn(kEngines),
                         [](const ::testing::TestParamInfo<EngineKind>& entry) {
                           return name_of(entry.param);
                         });

}  // namespace
}  // namespace spillway::nvme_swap::kill_test
