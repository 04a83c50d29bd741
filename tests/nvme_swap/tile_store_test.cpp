// The store's everyday behaviour, with every engine.
#include "nvme_swap/tile_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap::tile_store_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct StoreCase {
  EngineKind engine;
  CacheUse cache;
  std::size_t directories;
};

std::string name_of_case(const ::testing::TestParamInfo<StoreCase>& info) {
  return name_of(info.param.engine) +
         (info.param.cache == CacheUse::bypass ? "Direct" : "Buffered") +
         std::to_string(info.param.directories);
}

class TileStoreTest : public ::testing::TestWithParam<StoreCase> {
 protected:
  TileStoreTest() : options_(small_options(scratch_.path(), GetParam().directories)) {
    options_.engine = GetParam().engine;
    options_.cache = GetParam().cache;
  }
  ScratchDirectory scratch_;
  StoreOptions options_;
};

TEST_P(TileStoreTest, ReadsTheNewestVersion) {
  const auto store = TileStore::create(options_, {{4_KiB, 20_KiB, 8_KiB, 100_KiB, 4_KiB}});
  for (std::uint64_t step = 1; step <= 5; ++step) {
    write_step(*store, step);
    expect_step(*store, step);
    commit_step(*store, step);
    expect_step(*store, step);
    ASSERT_TRUE(store->committed());
    EXPECT_EQ(store->committed()->step.value(), step);
    EXPECT_EQ(store->committed()->payload, header_of(step).payload);
  }
  EXPECT_EQ(store->counters().written, 136_KiB * 5);
  EXPECT_EQ(store->counters().read, 136_KiB * 10);
  EXPECT_EQ(store->counters().commits, 5U);
}

TEST_P(TileStoreTest, ReopensAtTheLastCommit) {
  const StoreLayout layout{{12_KiB, 4_KiB, 36_KiB}};
  {
    const auto store = TileStore::create(options_, layout);
    EXPECT_FALSE(TileStore::has_commit(options_));
    write_step(*store, 1);
    commit_step(*store, 1);
    EXPECT_TRUE(TileStore::has_commit(options_)) << "also while the store is in use";
    write_step(*store, 2);
    commit_step(*store, 2);
    write_step(*store, 3);
  }
  EXPECT_TRUE(TileStore::has_commit(options_));
  const auto store = TileStore::open(options_);
  EXPECT_EQ(store->layout().tiles, layout.tiles);
  ASSERT_TRUE(store->committed());
  EXPECT_EQ(store->committed()->step.value(), 2U);
  EXPECT_EQ(store->committed()->payload, header_of(2).payload);
  expect_step(*store, 2);
  write_step(*store, 3);
  commit_step(*store, 3);
  expect_step(*store, 3);
}

INSTANTIATE_TEST_SUITE_P(Engines, TileStoreTest,
                         ::testing::Values(StoreCase{EngineKind::posix, CacheUse::bypass, 1},
                                           StoreCase{EngineKind::posix, CacheUse::always, 3},
                                           StoreCase{EngineKind::aio, CacheUse::bypass, 2},
                                           StoreCase{EngineKind::aio, CacheUse::always, 1},
                                           StoreCase{EngineKind::uring, CacheUse::bypass, 2},
                                           StoreCase{EngineKind::uring, CacheUse::always, 1}),
                         name_of_case);

}  // namespace
}  // namespace spillway::nvme_swap::tile_store_test
