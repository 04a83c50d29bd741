// The offline check finds whatever is not as it was written, and names it.
#include "nvme_swap/fsck.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>

#include <fstream>

#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap::fsck_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class FsckTest : public ::testing::Test {
 protected:
  FsckTest() : options_(small_options(scratch_.path(), 2)) {
    const auto store = TileStore::create(options_, {{12_KiB, 4_KiB, 36_KiB, 8_KiB}});
    for (const std::uint64_t step : {1U, 2U}) {
      write_step(*store, step);
      commit_step(*store, step);
    }
    write_step(*store, 3);  // and not committed
    map_ = plan_store(store->layout().tiles, 2, 2, {});
  }
  [[nodiscard]] std::filesystem::path file(std::size_t index) const {
    return swap_file_path(options_.directories[index], options_.name, index);
  }
  void flip(std::size_t index, std::uint64_t byte) {
    std::fstream stream(file(index), std::ios::binary | std::ios::in | std::ios::out);
    stream.seekg(static_cast<std::streamoff>(byte));
    const int changed = stream.get() ^ 16;
    stream.seekp(static_cast<std::streamoff>(byte));
    stream.put(static_cast<char>(changed));
    ASSERT_TRUE(stream.good());
  }
  FsckReport check() { return check_store(options_, {}); }

  const QuietLog quiet_;
  ScratchDirectory scratch_{Medium::memory};
  StoreOptions options_;
  StoreMap map_;
};

TEST_F(FsckTest, FindsASoundStoreSound) {
  Bytes last{};
  const FsckReport report = check_store(options_, [&](Bytes done, Bytes total) {
    EXPECT_GT(done, last);
    EXPECT_EQ(total, 60_KiB);
    last = done;
  });
  EXPECT_TRUE(report.damage.empty());
  EXPECT_TRUE(report.resumable);
  EXPECT_EQ(report.step, StepIndex{2});
  EXPECT_EQ(report.generation, 2U);
  EXPECT_EQ(report.slots, 2U);
  EXPECT_EQ(report.tiles, 4U);
  EXPECT_EQ(report.tiles_checked, 4U);
  EXPECT_EQ(report.bytes_checked, 60_KiB);
  EXPECT_EQ(last, 60_KiB);
  EXPECT_THAT(report.files, ElementsAre(file(0), file(1)));
  expect_step(*TileStore::open(options_), 2);
}

TEST_F(FsckTest, NamesEveryDamagedTile) {
  // Step 2 lies in slot 1; step 3 in slot 0 is no part of it.
  flip(map_.tiles[1].file, map_.slot_offset(TileIndex{1}, 1) + 4095);
  flip(map_.tiles[2].file, map_.slot_offset(TileIndex{2}, 1));
  flip(map_.tiles[3].file, map_.slot_offset(TileIndex{3}, 0));
  const FsckReport report = check();
  ASSERT_THAT(report.damage, SizeIs(2));
  EXPECT_THAT(report.damage[0].what, HasSubstr("tile 1"));
  EXPECT_THAT(report.damage[1].what, HasSubstr("tile 2"));
  EXPECT_EQ(report.damage[1].file, file(map_.tiles[2].file));
  EXPECT_FALSE(report.resumable);
  EXPECT_EQ(report.tiles_checked, 4U);
}

TEST_F(FsckTest, SaysWhenOnlyTheSpareRecordIsDamaged) {
  flip(0, map_.record_offset[1] + 50);
  FsckReport report = check();
  ASSERT_THAT(report.damage, SizeIs(1));
  EXPECT_THAT(report.damage[0].what, HasSubstr("commit record 1"));
  EXPECT_EQ(report.step.has_value(), true);
  flip(0, map_.record_offset[0] + 50);
  report = check();
  EXPECT_THAT(report.damage, SizeIs(2));
  EXPECT_FALSE(report.resumable);
  EXPECT_FALSE(report.step);
}

TEST_F(FsckTest, FindsEveryFlippedBitOfRecordsAndHeaders) {
  std::mt19937_64 random(test_seed());
  const std::uint64_t end = map_.record_offset[1] + map_.record_bytes;
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t byte = random() % end;
    flip(0, byte);
    EXPECT_FALSE(check().damage.empty()) << "byte " << byte;
    flip(0, byte);
  }
  EXPECT_TRUE(check().damage.empty());
}

TEST_F(FsckTest, NamesEveryDamagedFile) {
  flip(0, 20);
  std::filesystem::remove(file(1));
  const FsckReport report = check();
  ASSERT_THAT(report.damage, SizeIs(2));
  EXPECT_EQ(report.damage[0].file, file(0));
  EXPECT_THAT(report.damage[1].what, HasSubstr("is not there"));
  EXPECT_FALSE(report.resumable);
}

TEST_F(FsckTest, RefusesAStoreInUse) {
  options_.lock_patience = std::chrono::milliseconds{20};
  const auto store = TileStore::open(options_);
  EXPECT_EQ(code_of([&] { return check(); }), ErrorCode::busy);
}

// Who may not open a file for writing learns nothing of what is in it.
TEST_F(FsckTest, CallsAStoreThatMayOnlyBeReadNotDamaged) {
  for (std::size_t i = 0; i < options_.directories.size(); ++i) {
    std::filesystem::permissions(file(i), std::filesystem::perms::owner_read);
  }
  const int root = ::setfsuid(65534);  // whom permissions would not stop
  EXPECT_THAT([&] { check(); },
              testing::Throws<Error>(testing::Property(&Error::code, ErrorCode::io_error)));
  ::setfsuid(static_cast<uid_t>(root));
  EXPECT_TRUE(check_store_in_use(options_, {}).damage.empty());
}

TEST_F(FsckTest, FindsTheStoresOfADirectory) {
  EXPECT_THAT(stores_in(options_.directories[0]), ElementsAre("tiles"));
  std::ofstream(options_.directories[0] / "other-0.swap") << "x";
  std::ofstream(options_.directories[0] / "-0.swap") << "x";
  EXPECT_THAT(stores_in(options_.directories[0]), ElementsAre("other", "tiles"));
  EXPECT_TRUE(stores_in(options_.directories[1]).empty());
}

TEST_F(FsckTest, CallsAStoreWithoutACommitSound) {
  options_.name = "fresh";
  static_cast<void>(TileStore::create(options_, layout_of(2, 4_KiB)));
  const FsckReport report = check();
  EXPECT_TRUE(report.damage.empty());
  EXPECT_FALSE(report.step);
  ASSERT_THAT(report.notes, SizeIs(1));
  EXPECT_THAT(report.notes[0].what, HasSubstr("no step"));
}

}  // namespace
}  // namespace spillway::nvme_swap::fsck_test
