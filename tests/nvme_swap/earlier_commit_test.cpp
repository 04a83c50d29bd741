// A store that goes back to the commit before its newest, as one of many ranks has to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nvme_swap/committed_tiles.hpp"
#include "nvme_swap/fsck.hpp"
#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap::earlier_commit_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class EarlierCommit : public ::testing::Test {
 protected:
  EarlierCommit() : options_(small_options(scratch_.path())) {
    const auto store = TileStore::create(options_, {{12_KiB, 4_KiB, 36_KiB}});
    for (std::uint64_t step = 1; step <= 4; ++step) {
      write_step(*store, step);
      commit_step(*store, step);
    }
  }

  [[nodiscard]] std::unique_ptr<TileStore> back_at(StepIndex step) const {
    auto store = TileStore::open_at(options_, step);
    store->go_back();
    return store;
  }
  [[nodiscard]] std::uint64_t newest() const {
    return TileStore::open(options_)->committed()->step.value();
  }

  ScratchDirectory scratch_{Medium::memory};
  StoreOptions options_;
};

TEST_F(EarlierCommit, IsTheNewestFromThenOn) {
  {
    const auto store = back_at(StepIndex{3});
    EXPECT_EQ(store->committed()->payload, header_of(3).payload);
    expect_step(*store, 3);
    // Half a step overwrites what the newer commit named, and must not make that one wrong.
    write_step(*store, 4);
  }
  EXPECT_EQ(newest(), 3U);
  const auto store = back_at(StepIndex{3});
  expect_step(*store, 3);
  for (std::uint64_t step = 4; step <= 6; ++step) {
    write_step(*store, step);
    commit_step(*store, step);
  }
  expect_step(*store, 6);
}

TEST_F(EarlierCommit, IsReadBeforeTheNewerOneIsGivenUp) {
  expect_step(*TileStore::open_at(options_, StepIndex{3}), 3);
  EXPECT_EQ(newest(), 4U);
  expect_step(*TileStore::open(options_), 4);
}

TEST_F(EarlierCommit, StaysThereForOneMoreStepBack) {
  {
    const auto store = back_at(StepIndex{3});
    write_step(*store, 4);
    commit_step(*store, 4);
  }
  EXPECT_EQ(newest(), 4U);
  expect_step(*back_at(StepIndex{3}), 3);
}

TEST_F(EarlierCommit, OpensTheNewestWhereThatIsWanted) {
  expect_step(*back_at(StepIndex{4}), 4);
  EXPECT_EQ(newest(), 4U);
}

TEST_F(EarlierCommit, IsRefusedWhereItIsOverwritten) {
  for (const std::uint64_t step : {2U, 5U}) {
    const auto open = [&] { return TileStore::open_at(options_, StepIndex{step}); };
    EXPECT_EQ(code_of(open), ErrorCode::corrupt_data);
    EXPECT_THAT(message_of(open), AllOf(HasSubstr("from step " + std::to_string(step)),
                                        HasSubstr("of step 4"), HasSubstr("tiles-0.swap")));
  }
}

TEST_F(EarlierCommit, IsNotTakenForDamageByWhoReadsTheNewerOne) {
  const CommittedTiles reader(options_);
  const auto store = back_at(StepIndex{3});
  write_step(*store, 7);
  PageBuffer tile(4096);
  EXPECT_EQ(reader.read(TileIndex{1}, tile.bytes()), TileRead::moved_on);
}

TEST_F(EarlierCommit, IsCheckedAsTheOneThatAResumeGoesOnFrom) {
  const auto check = [&](std::uint64_t step) {
    return check_commit(options_, StepIndex{step}, [](Bytes, Bytes) {});
  };
  const FsckReport whole = check(3);
  EXPECT_TRUE(whole.resumable);
  EXPECT_EQ(whole.step, StepIndex{3});
  EXPECT_EQ(whole.tiles_checked, 3U);
  EXPECT_TRUE(whole.damage.empty());
  const FsckReport gone = check(2);
  EXPECT_FALSE(gone.resumable);
  EXPECT_EQ(gone.damage.size(), 1U);
  write_step(*TileStore::open(options_), 5);
  const FsckReport overwritten = check(3);
  EXPECT_FALSE(overwritten.resumable);
  ASSERT_EQ(overwritten.damage.size(), 1U);
  EXPECT_THAT(overwritten.damage[0].what, HasSubstr("the tiles of step 3 are not whole"));
}

TEST_F(EarlierCommit, IsReadWhileTheNewerOneStays) {
  CommittedTiles reader(options_);
  reader.take(StepIndex{3});
  EXPECT_EQ(reader.commit().payload, header_of(3).payload);
  PageBuffer tile(4096);
  EXPECT_EQ(reader.read(TileIndex{1}, tile.bytes()), TileRead::whole);
  EXPECT_FALSE(reader.has_moved_on());
  EXPECT_EQ(newest(), 4U);
  EXPECT_EQ(code_of([&] { reader.take(StepIndex{2}); }), ErrorCode::corrupt_data);

  const auto store = TileStore::open(options_);
  write_step(*store, 5);
  EXPECT_EQ(reader.read(TileIndex{1}, tile.bytes()), TileRead::moved_on);
  EXPECT_FALSE(reader.has_moved_on());
  commit_step(*store, 5);
  EXPECT_TRUE(reader.has_moved_on());
  reader.take_newest();
  EXPECT_FALSE(reader.has_moved_on());
}

/// A process that dies on the way back leaves the newer record, or none in its place.
TEST_F(EarlierCommit, IsThereAfterAnyFailureOnTheWay) {
  const QuietLog quiet;
  bool failed = true;
  for (std::uint64_t nth = 1; failed; ++nth) {
    StoreOptions failing = options_;
    failing.adapt = [&](std::unique_ptr<IoEngine> engine, const EngineOptions& options) {
      auto made = std::make_unique<FailingEngine>(std::move(engine), options);
      made->arm({.first = nth});
      return made;
    };
    failed = false;
    try {
      TileStore::open_at(failing, StepIndex{3})->go_back();
    } catch (const Error&) {
      failed = true;
    }
    const auto store = back_at(StepIndex{3});
    expect_step(*store, 3);
    write_step(*store, 4);
    commit_step(*store, 4);
    ASSERT_LT(nth, 10U);
  }
}

}  // namespace
}  // namespace spillway::nvme_swap::earlier_commit_test
