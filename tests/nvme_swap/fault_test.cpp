// "Fail the n-th operation" over a whole write, commit and read cycle, for every n.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap::fault_test {
namespace {

struct FaultCase {
  std::string name;
  EngineKind engine;
  Fault fault;
  bool harmless;  ///< the store must carry on as if nothing had happened
};

/// `SPILLWAY_TEST_LATENCY_MS` makes each late operation as late as wanted: 1000 takes minutes.
std::chrono::milliseconds latency() {
  return std::chrono::milliseconds{count_from("SPILLWAY_TEST_LATENCY_MS", 3)};
}

std::vector<FaultCase> fault_cases() {
  std::vector<FaultCase> cases;
  for (const EngineKind engine : kEngines) {
    const std::string name = name_of(engine);
    cases.push_back({name + "Eio", engine, {.error = EIO}, false});
    cases.push_back({name + "Enospc", engine, {.error = ENOSPC}, false});
    // The faults happen above the engine; each aio context takes the kernel 30 ms to end.
    if (engine == EngineKind::aio) continue;
    cases.push_back({name + "Eintr", engine, {.count = 3, .error = EINTR}, true});
    cases.push_back({name + "Eagain", engine, {.count = 5, .error = EAGAIN}, true});
    cases.push_back({name + "EintrForEver", engine, {.count = 1U << 30, .error = EINTR}, false});
    cases.push_back(
        {name + "ShortToAPage", engine, {.action = FaultAction::shorten, .length = 4096}, true});
    // With O_DIRECT a page is the unit; a sector's worth of progress must not confuse the store.
    cases.push_back(
        {name + "ShortToASector", engine, {.action = FaultAction::shorten, .length = 512}, true});
    cases.push_back({name + "Zero", engine, {.action = FaultAction::zero}, true});
    cases.push_back(
        {name + "ZeroForEver", engine, {.action = FaultAction::zero, .count = 1U << 30}, false});
    cases.push_back(
        {name + "Late", engine, {.action = FaultAction::delay, .delay = latency()}, true});
    cases.push_back(
        {name + "Reordered", engine, {.action = FaultAction::reorder, .count = 2}, true});
    cases.push_back(
        {name + "AllReordered", engine, {.action = FaultAction::reorder, .count = 1U << 30}, true});
  }
  return cases;
}

class FaultTest : public ::testing::TestWithParam<FaultCase> {
 protected:
  FaultTest() : options_(small_options(scratch_.path(), 2)) {
    options_.engine = GetParam().engine;
    make_failing(options_, faults_);
  }

  /// Writes a tile ahead of its step, and gives it up.
  static void undo_a_tile(TileStore& store) {
    const PageBuffer content = tile_content(store.layout().tiles[2], 2, 1000);
    store.write(TileIndex{2}, content.bytes(), checksum_of(content.bytes())).wait();
    store.discard(TileIndex{2});
  }

  /// Step 2, behind a tile that is given up, with operation number `n` spoiled. Returns false when
  /// there was no such operation.
  bool cycle(std::uint64_t n) {
    bool committed = false;
    bool failed = false;
    {
      const auto store = TileStore::create(options_, layout_of(3, 20_KiB));
      write_step(*store, 1);
      commit_step(*store, 1);
      Fault fault = GetParam().fault;
      fault.first = n;
      faults_->arm(fault);
      try {
        undo_a_tile(*store);
        write_step(*store, 2);
        commit_step(*store, 2);
        committed = true;
        expect_step(*store, 2);
      } catch (const Error& error) {
        failed = true;
        EXPECT_EQ(error.code(), ErrorCode::io_error) << error.what();
        EXPECT_THAT(error.what(), ::testing::HasSubstr(".swap"));
        if (fault.action == FaultAction::fail) {
          EXPECT_EQ(error.native(), fault.error);
        }
      }
      if (faults_->spoiled() == 0) return false;
    }
    EXPECT_FALSE(failed && GetParam().harmless) << "operation " << n;
    check_recovery(n, committed);
    return true;
  }

  void check_recovery(std::uint64_t n, bool committed) {
    const auto store = TileStore::open(options_);
    ASSERT_TRUE(store->committed()) << "operation " << n;
    const std::uint64_t step = store->committed()->step.value();
    // A commit that failed may have left either step, one that succeeded only its own.
    EXPECT_TRUE(step == 2 || (step == 1 && !committed)) << "operation " << n << " step " << step;
    expect_step(*store, step);
    write_step(*store, 3);
    commit_step(*store, 3);
    expect_step(*store, 3);
  }

  const QuietLog quiet_;
  ScratchDirectory scratch_{Medium::memory};
  StoreOptions options_;
  FailingEngine* faults_ = nullptr;
};

TEST_P(FaultTest, EndsWithAnErrorOrTheRightResult) {
  std::uint64_t n = 1;
  const std::size_t descriptors = open_descriptors();
  while (cycle(n)) {
    ASSERT_EQ(open_descriptors(), descriptors) << "leaked by operation " << n;
    ASSERT_FALSE(HasFailure()) << "operation " << n;
    for (const auto& directory : options_.directories) std::filesystem::remove_all(directory);
    ++n;
  }
  // 12 pieces written, 2 + 1 flushes, a record, 9 pieces read.
  EXPECT_GT(n, 25U);
}

INSTANTIATE_TEST_SUITE_P(Engines, FaultTest, ::testing::ValuesIn(fault_cases()),
                         [](const ::testing::TestParamInfo<FaultCase>& entry) {
                           return entry.param.name;
                         });

TEST(LostWrites, AreFoundWhenTheTileIsRead) {
  for (std::uint64_t n = 1; n <= 9; ++n) {
    ScratchDirectory scratch(Medium::memory);
    StoreOptions options = small_options(scratch.path(), 2);
    FailingEngine* faults = nullptr;
    make_failing(options, faults);
    const auto store = TileStore::create(options, layout_of(3, 20_KiB));
    faults->arm({.action = FaultAction::lose, .operation = IoOperation::write, .first = n});
    write_step(*store, 1);
    commit_step(*store, 1);
    int damaged = 0;
    for (std::uint32_t tile = 0; tile < 3; ++tile) {
      PageBuffer target(20'480);
      store->read(TileIndex{tile}, target.bytes()).wait();
      try {
        store->verify(TileIndex{tile}, target.bytes());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
        ++damaged;
      }
    }
    EXPECT_EQ(damaged, 1) << "write " << n;
  }
}

TEST(LateDisk, DelaysAndDoesNotDisturb) {
  ScratchDirectory scratch;
  StoreOptions options = small_options(scratch.path());
  FailingEngine* faults = nullptr;
  make_failing(options, faults);
  const auto store = TileStore::create(options, layout_of(1, 4_KiB));
  faults->arm({.action = FaultAction::delay, .delay = std::chrono::milliseconds{1000}});
  write_step(*store, 1);
  commit_step(*store, 1);
  expect_step(*store, 1);
}

}  // namespace
}  // namespace spillway::nvme_swap::fault_test
