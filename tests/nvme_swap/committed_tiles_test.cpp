// The newest commit of a store, read while a run holds its lock and goes on committing.
#include "nvme_swap/committed_tiles.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap::committed_tiles_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CommittedTilesTest : public ::testing::Test {
 protected:
  CommittedTilesTest() : options_(small_options(scratch_.path(), 2)) {
    options_.owner = RunId{{1, 2}};
  }

  static void make_step(TileStore& store, std::uint64_t step) {
    write_step(store, step);
    commit_step(store, step);
  }

  /// Reads one tile; when it is whole, it holds what the commit's step wrote.
  static TileRead read(const CommittedTiles& tiles, std::uint32_t tile) {
    const Bytes bytes = tiles.layout().tiles.at(tile);
    PageBuffer target(bytes.value());
    const TileRead outcome = tiles.read(TileIndex{tile}, target.bytes());
    if (outcome == TileRead::whole) {
      const auto expected = tile_content(bytes, tile, tiles.commit().step.value());
      EXPECT_TRUE(same_bytes(target.bytes(), expected.bytes())) << "tile " << tile;
    }
    return outcome;
  }

  /// Reads every tile; false if the store has moved on.
  static bool read_all(const CommittedTiles& tiles) {
    for (std::uint32_t tile = 0; tile < tiles.layout().tiles.size(); ++tile) {
      if (read(tiles, tile) == TileRead::moved_on) return false;
    }
    return true;
  }

  void flip_byte(std::size_t index, std::uint64_t offset) const {
    std::fstream file(swap_file_path(options_.directories[index], options_.name, index),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }

  ScratchDirectory scratch_;
  StoreOptions options_;
  StoreLayout layout_{{12_KiB, 4_KiB, 36_KiB, 8_KiB}};
};

TEST_F(CommittedTilesTest, AreThoseOfTheLastCommitWhileTheStoreIsLocked) {
  const auto store = TileStore::create(options_, layout_);
  make_step(*store, 1);
  CommittedTiles tiles(options_);
  EXPECT_EQ(tiles.commit().step.value(), 1U);
  EXPECT_EQ(tiles.commit().payload, header_of(1).payload);
  EXPECT_EQ(tiles.layout().tiles, layout_.tiles);
  EXPECT_TRUE(read_all(tiles));
  write_step(*store, 2);
  EXPECT_TRUE(read_all(tiles)) << "what is not committed took the spare slots";
  commit_step(*store, 2);
  EXPECT_TRUE(read_all(tiles)) << "nothing was written over yet";
  tiles.take_newest();
  EXPECT_EQ(tiles.commit().step.value(), 2U);
  EXPECT_TRUE(read_all(tiles));
}

TEST_F(CommittedTilesTest, TellWhatWasWrittenOverFromWhatIsDamaged) {
  const auto store = TileStore::create(options_, layout_);
  make_step(*store, 1);
  CommittedTiles tiles(options_);
  make_step(*store, 2);
  write_step(*store, 3);
  EXPECT_EQ(read(tiles, 0), TileRead::moved_on);
  tiles.take_newest();
  EXPECT_EQ(tiles.commit().step.value(), 2U);
  EXPECT_TRUE(read_all(tiles));
  const StoreMap map = plan_store(layout_.tiles, 2, 2, {});
  flip_byte(map.tiles[2].file, map.slot_offset(TileIndex{2}, 1) + 5000);
  EXPECT_THAT(message_of([&] { return read(tiles, 2); }),
              AllOf(HasSubstr("tile 2 of"), HasSubstr("is not what was written")));
  EXPECT_EQ(code_of([&] { return read(tiles, 2); }), ErrorCode::corrupt_data);
  EXPECT_EQ(read(tiles, 3), TileRead::whole);
}

TEST_F(CommittedTilesTest, AreReadByAnotherProcess) {
  const auto store = TileStore::create(options_, layout_);
  make_step(*store, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    bool whole = false;
    try {
      whole = read_all(CommittedTiles(options_));
    } catch (const Error&) {
    }
    ::_exit(whole && !HasFailure() ? 7 : 1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  make_step(*store, 2);
}

TEST_F(CommittedTilesTest, AreWholeOrSaidToHaveMovedOnWhileStepsAreCommitted) {
  const auto store = TileStore::create(options_, layout_);
  make_step(*store, 1);
  std::atomic<bool> over = false;
  std::size_t whole = 0;
  std::uint64_t last = 0;
  std::thread reader([&] {
    CommittedTiles tiles(options_);
    for (bool more = true; more;) {
      more = !over;
      tiles.take_newest();
      EXPECT_GE(tiles.commit().step.value(), last);
      last = tiles.commit().step.value();
      ASSERT_NO_THROW(whole += read_all(tiles) ? 1U : 0U);
    }
  });
  constexpr std::uint64_t kSteps = 200;
  for (std::uint64_t step = 2; step <= kSteps; ++step) make_step(*store, step);
  over = true;
  reader.join();
  EXPECT_EQ(last, kSteps) << "the reader looked once more after the last commit";
  EXPECT_GT(whole, 0U);
}

TEST_F(CommittedTilesTest, AreOfTheRunThatIsNamed) {
  {
    const auto store = TileStore::create(options_, layout_);
    EXPECT_THAT(message_of([&] { return CommittedTiles(options_), 0; }),
                HasSubstr("holds no committed step"));
    make_step(*store, 1);
  }
  options_.owner = RunId{{3, 4}};
  EXPECT_THAT(message_of([&] { return CommittedTiles(options_), 0; }),
              HasSubstr("belongs to run 00000000000000010000000000000002"));
}

TEST_F(CommittedTilesTest, AreRefusedWhereNothingOrSomethingElseLies) {
  const auto look = [&] { return CommittedTiles(options_), 0; };
  EXPECT_EQ(code_of(look), ErrorCode::corrupt_data);
  std::filesystem::create_directories(options_.directories[0]);
  const auto first = swap_file_path(options_.directories[0], options_.name, 0);
  ASSERT_EQ(::mkfifo(first.c_str(), 0600), 0);
  EXPECT_THAT(message_of(look), HasSubstr("is not a regular file"));
}

TEST_F(CommittedTilesTest, AreNamedIfTheCommitHasNone) {
  const auto store = TileStore::create(options_, layout_);
  const auto content = tile_content(layout_.tiles[1], 1, 1);
  store->write(TileIndex{1}, content.bytes(), checksum_of(content.bytes())).wait();
  commit_step(*store, 1);
  const CommittedTiles tiles(options_);
  EXPECT_TRUE(tiles.has(TileIndex{1}));
  EXPECT_FALSE(tiles.has(TileIndex{0}));
  EXPECT_EQ(code_of([&] { return read(tiles, 0); }), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace spillway::nvme_swap::committed_tiles_test
