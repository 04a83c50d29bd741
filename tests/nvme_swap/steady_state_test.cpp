// After start-up the store allocates nothing and opens nothing, however long it runs.
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <optional>

#include "tests/nvme_swap/test_support.hpp"
#include "tests/support/allocation_counter.hpp"

namespace spillway::nvme_swap::steady_state_test {
namespace {

struct SteadyCase {
  EngineKind engine;
  std::optional<double> throttle;
};

class SteadyState : public ::testing::TestWithParam<SteadyCase> {};

TEST_P(SteadyState, AllocatesAndOpensNothing) {
  constexpr std::uint32_t kTiles = 6;
  constexpr std::size_t kTileBytes = 40'960;
  ScratchDirectory scratch(Medium::memory);
  WakeSignal wake;
  StoreOptions options = small_options(scratch.path(), 2);
  options.engine = GetParam().engine;
  options.disk_gigabytes_per_second = GetParam().throttle;
  options.slots = 3;
  options.wake = &wake;
  const auto store = TileStore::create(options, layout_of(kTiles, Bytes{kTileBytes}));
  PageBuffer source(kTiles * kTileBytes);
  PageBuffer target(kTiles * kTileBytes);
  std::array<Ticket, 2 * kTiles> tickets;
  CommitHeader header{.step = StepIndex{0}};
  header.payload.resize(64);
  Ticket commit;

  const auto step = [&](std::uint64_t number) {
    for (std::uint32_t tile = 0; tile < kTiles; ++tile) {
      const auto bytes = source.bytes().subspan(tile * kTileBytes, kTileBytes);
      fill_tile(bytes, tile, number);
      tickets[tile] = store->write(TileIndex{tile}, bytes, checksum_of(bytes));
    }
    // The commit of the step before runs beside the writes.
    for (Ticket& ticket : tickets) {
      while (!ticket.ready()) wake.wait_for(std::chrono::milliseconds{100});
      ticket.wait();
    }
    for (std::uint32_t tile = 0; tile < kTiles; ++tile) {
      const auto bytes = target.bytes().subspan(tile * kTileBytes, kTileBytes);
      tickets[kTiles + tile] = store->read(TileIndex{tile}, bytes);
    }
    commit.wait();
    header.step = StepIndex{number};
    commit = store->commit(header);
    for (std::uint32_t tile = 0; tile < kTiles; ++tile) {
      tickets[kTiles + tile].wait();
      store->verify(TileIndex{tile}, target.bytes().subspan(tile * kTileBytes, kTileBytes));
    }
  };

  for (std::uint64_t number = 1; number <= 3; ++number) step(number);
  const std::size_t descriptors = open_descriptors();
  const test_support::AllocationCounter counter;
  for (std::uint64_t number = 4; number <= 40; ++number) step(number);
  EXPECT_EQ(counter.allocations(), 0);
  EXPECT_EQ(open_descriptors(), descriptors);
  commit.wait();
  EXPECT_EQ(store->committed()->step.value(), 40U);
  EXPECT_TRUE(same_bytes(source.bytes(), target.bytes()));
}

/// Whoever waits for a commit could not be told that it is over, if its end might fail.
TEST_P(SteadyState, TheFirstCommitAllocatesNothing) {
  constexpr std::size_t kTileBytes = 40'960;
  ScratchDirectory scratch(Medium::memory);
  StoreOptions options = small_options(scratch.path(), 2);
  options.engine = GetParam().engine;
  const auto store = TileStore::create(options, layout_of(1, Bytes{kTileBytes}));
  PageBuffer source(kTileBytes);
  fill_tile(source.bytes(), 0, 1);
  store->write(TileIndex{0}, source.bytes(), checksum_of(source.bytes())).wait();
  const CommitHeader header{.step = StepIndex{1}, .payload = std::vector<std::byte>(64)};
  const test_support::AllocationCounter counter;
  store->commit(header).wait();
  EXPECT_EQ(counter.allocations(), 0);
  EXPECT_EQ(store->committed()->payload, header.payload);
}

INSTANTIATE_TEST_SUITE_P(Engines, SteadyState,
                         ::testing::Values(SteadyCase{EngineKind::posix, std::nullopt},
                                           SteadyCase{EngineKind::uring, std::nullopt},
                                           SteadyCase{EngineKind::aio, std::nullopt},
                                           SteadyCase{EngineKind::uring, 2.0}),
                         [](const ::testing::TestParamInfo<SteadyCase>& entry) {
                           return name_of(entry.param.engine) +
                                  (entry.param.throttle ? "Throttled" : "");
                         });

/// A field of /proc/self/status, in KiB.
std::size_t status_kib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoull(line.substr(field.size() + 1));
  }
  ADD_FAILURE() << "no " << field;
  return 0;
}

#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || \
    __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
constexpr std::size_t kSlackKib = 65536;  // a sanitizer's own memory grows with what it has seen
#else
constexpr std::size_t kSlackKib = 1024;
#endif

struct Footprint {
  std::size_t descriptors = open_descriptors();
  std::size_t resident = status_kib("VmRSS");
  std::size_t locked = status_kib("VmLck");
  std::size_t pinned = status_kib("VmPin");
};

class LongRun : public ::testing::TestWithParam<EngineKind> {};

TEST_P(LongRun, LeavesDescriptorsAndMemoryFlat) {
  constexpr std::uint32_t kTiles = 3;
  const std::uint64_t steps = count_from("SPILLWAY_TEST_STEPS", 10'000);
  ScratchDirectory scratch(Medium::memory);
  PageBuffer memory(2 * kTiles * kPageBytes);
  const auto part = [&](std::size_t index) {
    return memory.bytes().subspan(index * kPageBytes, kPageBytes);
  };
  StoreOptions options = small_options(scratch.path(), 2);
  options.engine = GetParam();
  options.buffers = {memory.bytes()};
  const auto store = TileStore::create(options, layout_of(kTiles, 4_KiB));
  std::array<Ticket, kTiles> tickets;
  CommitHeader header{.step = StepIndex{0}};
  header.payload.resize(64);
  std::optional<Footprint> early;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    for (std::uint32_t tile = 0; tile < kTiles; ++tile) {
      fill_tile(part(tile), tile, step);
      tickets[tile] = store->write(TileIndex{tile}, part(tile), checksum_of(part(tile)));
    }
    for (Ticket& ticket : tickets) ticket.wait();
    header.step = StepIndex{step};
    store->commit(header).wait();
    for (std::uint32_t tile = 0; tile < kTiles; ++tile) {
      tickets[tile] = store->read(TileIndex{tile}, part(kTiles + tile));
    }
    for (std::uint32_t tile = 0; tile < kTiles; ++tile) {
      tickets[tile].wait();
      store->verify(TileIndex{tile}, part(kTiles + tile));
    }
    if (step == steps / 10) early.emplace();
  }
  const Footprint late;
  ASSERT_TRUE(early);
  EXPECT_EQ(late.descriptors, early->descriptors);
  EXPECT_EQ(late.locked, early->locked);
  EXPECT_EQ(late.pinned, early->pinned);
  // A leak of one page in ten steps would be 3.6 MB.
  EXPECT_LE(late.resident, early->resident + kSlackKib);
}

INSTANTIATE_TEST_SUITE_P(Engines, LongRun, ::testing::ValuesIn(kEngines),
                         [](const ::testing::TestParamInfo<EngineKind>& entry) {
                           return name_of(entry.param);
                         });

TEST(OpenDescriptors, ReturnToTheirNumberWhenStoresAreClosed) {
  ScratchDirectory scratch(Medium::memory);
  const std::size_t before = open_descriptors();
  for (const EngineKind engine : kEngines) {
    StoreOptions options = small_options(scratch.path(), 3);
    options.engine = engine;
    options.remove_on_close = true;
    const auto store = TileStore::create(options, layout_of(3, 4_KiB));
    EXPECT_GT(open_descriptors(), before);
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace spillway::nvme_swap::steady_state_test
