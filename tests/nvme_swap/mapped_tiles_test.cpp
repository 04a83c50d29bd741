// Tiles as memory of the process: what is there, what stays there, and how long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap::mapped_tiles_test {
namespace {

class MappedTilesTest : public ::testing::Test {
 protected:
  MappedTilesTest() {
    options_.directories = {scratch_.path() / "a", scratch_.path() / "b"};
    options_.slots = 1;
    options_.remove_on_close = true;
  }
  static void write(TileStore& store, std::uint32_t tile, std::uint64_t step) {
    const PageBuffer content = tile_content(store.layout().tiles[tile], tile, step);
    store.write(TileIndex{tile}, content.bytes(), checksum_of(content.bytes())).wait();
  }
  static void expect_tile(const TileStore& store, const MappedTiles& mapped, std::uint32_t tile,
                          std::uint64_t step) {
    const PageBuffer content = tile_content(store.layout().tiles[tile], tile, step);
    EXPECT_TRUE(same_bytes(mapped.of(TileIndex{tile}), content.bytes())) << tile << ' ' << step;
  }

  ScratchDirectory scratch_;
  StoreOptions options_;
  StoreLayout layout_{.tiles = {8_KiB, 4_KiB, 12_KiB, 16_KiB}};
};

TEST_F(MappedTilesTest, AreWhatWasWrittenAlsoAgain) {
  const auto store = TileStore::create(options_, layout_);
  for (std::uint32_t tile = 0; tile < 4; ++tile) write(*store, tile, 1);
  const MappedTiles mapped = store->map();
  for (std::uint32_t tile = 0; tile < 4; ++tile) expect_tile(*store, mapped, tile, 1);
  write(*store, 2, 2);
  expect_tile(*store, mapped, 2, 2);
  expect_tile(*store, mapped, 1, 1);
}

TEST_F(MappedTilesTest, KeepWhatIsWrittenThereFromTheFiles) {
  const auto store = TileStore::create(options_, layout_);
  for (std::uint32_t tile = 0; tile < 4; ++tile) write(*store, tile, 1);
  const MappedTiles mapped = store->map();
  const std::span<std::byte> tile = mapped.of(TileIndex{3});
  for (std::byte& each : tile) each ^= std::byte{255};
  PageBuffer read(tile.size());
  store->read(TileIndex{3}, read.bytes()).wait();
  store->verify(TileIndex{3}, read.bytes());
  EXPECT_NE(tile[0], read.bytes()[0]);
}

TEST_F(MappedTilesTest, OutliveTheirStoreAndItsFiles) {
  MappedTiles mapped;
  {
    const auto store = TileStore::create(options_, layout_);
    for (std::uint32_t tile = 0; tile < 4; ++tile) write(*store, tile, 1);
    mapped = store->map();
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path() / "a"));
  const auto store = TileStore::create(options_, layout_);  // nobody holds their lock
  for (std::uint32_t tile = 0; tile < 4; ++tile) expect_tile(*store, mapped, tile, 1);
}

TEST_F(MappedTilesTest, AreRefusedWhereWritesMoveThem) {
  options_.slots = 2;
  const auto store = TileStore::create(options_, layout_);
  EXPECT_EQ(code_of([&] { return store->map(); }), ErrorCode::not_supported);
}

}  // namespace
}  // namespace spillway::nvme_swap::mapped_tiles_test
