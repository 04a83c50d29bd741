// The rule by which a write chooses its slot.
#include "nvme_swap/detail/tile_versions.hpp"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <random>
#include <vector>

#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap::detail::tile_versions_test {
namespace {

constexpr TileIndex kTile{0};

/// One tile whose writes end at once.
class OneTile {
 public:
  explicit OneTile(std::uint32_t slots) : versions(1, slots) {}

  std::uint32_t write() {
    const auto slot = versions.choose_slot(kTile);
    EXPECT_TRUE(slot);
    versions.announce_write(kTile);
    versions.begin_write(kTile, slot.value_or(0));
    versions.finish_write(kTile, slot.value_or(0), ++checksum_);
    return slot.value_or(kNoSlot);
  }
  void begin_commit() { versions.begin_commit(record); }
  void commit() {
    begin_commit();
    versions.finish_commit();
  }

  TileVersions versions;
  std::array<TileRecord, 1> record;

 private:
  std::uint64_t checksum_ = 0;
};

TEST(TileVersions, HaveNothingToReadBeforeTheFirstWrite) {
  OneTile tile(2);
  EXPECT_EQ(tile.versions.newest(kTile), kNoSlot);
  tile.commit();
  EXPECT_EQ(tile.record[0].slot, kNoSlot);
}

TEST(TileVersions, AlternateWithEveryCommit) {
  OneTile tile(2);
  EXPECT_EQ(tile.write(), 0U);
  tile.commit();
  EXPECT_EQ(tile.write(), 1U);
  tile.commit();
  EXPECT_EQ(tile.write(), 0U);
}

TEST(TileVersions, OverwriteTheUncommittedVersionWhenBothSlotsAreTaken) {
  OneTile tile(2);
  tile.write();
  tile.commit();
  EXPECT_EQ(tile.write(), 1U);
  EXPECT_EQ(tile.write(), 1U) << "slot 0 is committed";
  EXPECT_EQ(tile.versions.checksum(kTile), 3U);
}

TEST(TileVersions, CannotBeReadWhileTheNewestIsOverwritten) {
  OneTile tile(2);
  tile.write();
  tile.commit();
  const std::uint32_t slot = tile.write();
  tile.versions.announce_write(kTile);
  tile.versions.begin_write(kTile, slot);
  EXPECT_EQ(tile.versions.newest(kTile), kNoSlot);
  tile.versions.fail_write(kTile);
  EXPECT_EQ(tile.versions.newest(kTile), kNoSlot) << "the older version must not come back unasked";
  ASSERT_TRUE(tile.versions.failed_tile());
  tile.versions.discard(kTile);
  EXPECT_EQ(tile.versions.newest(kTile), 0U);
  EXPECT_FALSE(tile.versions.failed_tile());
}

TEST(TileVersions, KeepTheNewestWhenAWriteToASpareSlotFails) {
  OneTile tile(2);
  tile.write();
  tile.versions.announce_write(kTile);
  tile.versions.begin_write(kTile, *tile.versions.choose_slot(kTile));
  tile.versions.fail_write(kTile);
  EXPECT_EQ(tile.versions.newest(kTile), 0U);
  EXPECT_TRUE(tile.versions.failed_tile());
  tile.write();
  EXPECT_FALSE(tile.versions.failed_tile());
}

TEST(TileVersions, WaitForTheCommitInProgress) {
  OneTile tile(2);
  tile.write();
  tile.commit();
  tile.write();
  tile.begin_commit();
  EXPECT_FALSE(tile.versions.choose_slot(kTile)) << "either slot may be what recovery finds";
  tile.versions.finish_commit();
  EXPECT_EQ(tile.versions.choose_slot(kTile), 0U);
}

TEST(TileVersions, DoNotWaitForTheCommitWithAThirdSlot) {
  OneTile tile(3);
  tile.write();
  tile.commit();
  tile.write();
  tile.begin_commit();
  EXPECT_EQ(tile.write(), 2U);
  EXPECT_EQ(tile.write(), 2U) << "neither committed nor being committed";
  tile.versions.finish_commit();
  EXPECT_EQ(tile.write(), 0U);
  EXPECT_EQ(tile.write(), 2U) << "the third slot lets two alternate between commits";
  EXPECT_EQ(tile.write(), 0U);
}

TEST(TileVersions, NeverWriteASlotThatIsBeingRead) {
  OneTile tile(2);
  tile.write();
  tile.commit();
  tile.versions.begin_read(kTile, 0);
  tile.write();
  tile.commit();
  EXPECT_FALSE(tile.versions.choose_slot(kTile)) << "slot 0 is still being read";
  EXPECT_TRUE(tile.versions.read_pending(kTile));
  tile.versions.end_read(kTile, 0);
  EXPECT_EQ(tile.versions.choose_slot(kTile), 0U);
}

TEST(TileVersions, DoNotOverwriteTheNewestForASpareSlotThatIsBeingRead) {
  OneTile tile(3);
  tile.write();
  tile.commit();
  tile.write();
  tile.versions.begin_read(kTile, 1);
  tile.write();
  EXPECT_FALSE(tile.versions.choose_slot(kTile)) << "slot 1 comes free by itself";
}

// Any order of writes, commits, reads, discards and failures keeps what recovery needs.
TEST(TileVersions, NeverTouchWhatRecoveryMayNeed) {
  std::mt19937_64 random(test_seed());
  for (const std::uint32_t slots : {2U, 3U, 4U}) {
    OneTile tile(slots);
    std::vector<std::uint64_t> content(slots, 0);  // the checksum that each slot really holds
    std::optional<TileRecord> committed;
    std::optional<TileRecord> committing;
    std::vector<std::uint32_t> reads;
    std::uint64_t next = 0;
    for (int i = 0; i < 20'000; ++i) {
      switch (random() % 6) {
        case 0:
        case 1: {
          const auto slot = tile.versions.choose_slot(kTile);
          if (!slot) {
            ASSERT_TRUE(committing || !reads.empty()) << "a write would wait for ever";
            break;
          }
          tile.versions.announce_write(kTile);
          tile.versions.begin_write(kTile, *slot);
          content[*slot] = ++next;
          if (random() % 8 == 0) {
            tile.versions.fail_write(kTile);
          } else {
            tile.versions.finish_write(kTile, *slot, next);
          }
          break;
        }
        case 2:
          if (committing || tile.versions.failed_tile()) break;
          tile.begin_commit();
          committing = tile.record[0];
          break;
        case 3:
          if (!committing) break;
          tile.versions.finish_commit();
          committed = committing;
          committing.reset();
          break;
        case 4:
          if (tile.versions.newest(kTile) == kNoSlot) break;
          reads.push_back(tile.versions.newest(kTile));
          tile.versions.begin_read(kTile, reads.back());
          break;
        case 5:
          if (!reads.empty()) {
            tile.versions.end_read(kTile, reads.back());
            reads.pop_back();
          } else if (!committing) {
            tile.versions.discard(kTile);
          }
          break;
      }
      for (const auto& record : {committed, committing}) {
        if (!record || record->slot == kNoSlot) continue;
        ASSERT_EQ(content[record->slot], record->checksum) << slots << " slots, action " << i;
      }
      if (tile.versions.newest(kTile) != kNoSlot) {
        ASSERT_EQ(content[tile.versions.newest(kTile)], tile.versions.checksum(kTile));
      }
    }
  }
}

}  // namespace
}  // namespace spillway::nvme_swap::detail::tile_versions_test
