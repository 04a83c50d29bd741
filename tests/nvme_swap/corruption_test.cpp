// Every changed bit of a swap file is noticed: exhaustively in headers and records.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/nvme_swap/test_support.hpp"

namespace spillway::nvme_swap::corruption_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void flip_bit(std::span<std::byte> data, std::size_t bit) {
  data[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
}

/// A store of two files at step 2, closed, whose bytes the tests change.
class CorruptionTest : public ::testing::Test {
 protected:
  CorruptionTest() : options_(small_options(scratch_.path(), 2)) {
    const auto store = TileStore::create(options_, layout_of(3, 4_KiB));
    for (const std::uint64_t step : {1U, 2U}) {
      write_step(*store, step);
      commit_step(*store, step);
    }
    map_ = plan_store(store->layout().tiles, 2, 2, {});
  }

  [[nodiscard]] std::filesystem::path file(std::size_t index) const {
    return swap_file_path(options_.directories[index], options_.name, index);
  }
  PageBuffer load(std::size_t index, std::uint64_t offset, std::uint64_t bytes) {
    PageBuffer buffer(bytes);
    std::ifstream stream(file(index), std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    stream.read(reinterpret_cast<char*>(buffer.bytes().data()),
                static_cast<std::streamsize>(bytes));
    EXPECT_TRUE(stream.good());
    return buffer;
  }
  void flip_in_file(std::size_t index, std::uint64_t bit) {
    std::fstream stream(file(index), std::ios::binary | std::ios::in | std::ios::out);
    stream.seekg(static_cast<std::streamoff>(bit / 8));
    const int byte = stream.get() ^ static_cast<int>(1U << (bit % 8));
    stream.seekp(static_cast<std::streamoff>(bit / 8));
    stream.put(static_cast<char>(byte));
    ASSERT_TRUE(stream.good());
  }

  const QuietLog quiet_;
  ScratchDirectory scratch_{Medium::memory};
  StoreOptions options_;
  StoreMap map_;  // but for the id
};

TEST_F(CorruptionTest, IsFoundInEveryBitOfTheHeader) {
  for (std::size_t index = 0; index < 2; ++index) {
    PageBuffer area = load(index, 0, map_.header_bytes);
    const auto page = area.bytes().first(kPageBytes);
    const auto table = area.bytes().subspan(kPageBytes);
    const FileHeader header = decode_header(page, map_.file_bytes[index], "intact");
    ASSERT_NO_THROW(static_cast<void>(decode_table(header, table, "intact")));
    for (std::size_t bit = 0; bit < kPageBytes * 8; ++bit) {
      flip_bit(page, bit);
      ASSERT_THROW(static_cast<void>(decode_header(page, map_.file_bytes[index], "flipped")), Error)
          << "bit " << bit;
      flip_bit(page, bit);
    }
    for (std::size_t bit = 0; bit < table.size() * 8; ++bit) {
      flip_bit(table, bit);
      ASSERT_THROW(static_cast<void>(decode_table(header, table, "flipped")), Error)
          << "bit " << bit;
      flip_bit(table, bit);
    }
  }
}

TEST_F(CorruptionTest, IsFoundInEveryBitOfBothRecords) {
  const PageBuffer page = load(0, 0, kPageBytes);
  map_.store_id = decode_header(page.bytes(), map_.file_bytes[0], "intact").store_id;
  std::string reason;
  for (const std::uint64_t offset : map_.record_offset) {
    PageBuffer area = load(0, offset, map_.record_bytes);
    ASSERT_TRUE(open_record(map_, area.bytes(), reason));
    for (std::size_t bit = 0; bit < area.bytes().size() * 8; ++bit) {
      flip_bit(area.bytes(), bit);
      ASSERT_FALSE(open_record(map_, area.bytes(), reason)) << "bit " << bit;
      flip_bit(area.bytes(), bit);
    }
  }
}

TEST_F(CorruptionTest, IsWhatTheRecordOfAnotherStoreWouldBe) {
  const PageBuffer page = load(0, 0, kPageBytes);
  map_.store_id = decode_header(page.bytes(), map_.file_bytes[0], "intact").store_id;
  const PageBuffer area = load(0, map_.record_offset[0], map_.record_bytes);
  std::string reason;
  ASSERT_TRUE(open_record(map_, area.bytes(), reason));
  ++map_.store_id[0];
  EXPECT_FALSE(open_record(map_, area.bytes(), reason));
  EXPECT_EQ(reason, "it belongs to another store");
}

TEST_F(CorruptionTest, IsFoundInEveryBitOfATile) {
  PageBuffer tile = tile_content(4_KiB, 1, 2);
  const std::uint64_t expected = checksum_of(tile.bytes());
  for (std::size_t bit = 0; bit < 4096 * 8; ++bit) {
    flip_bit(tile.bytes(), bit);
    ASSERT_NE(checksum_of(tile.bytes()), expected) << "bit " << bit;
    flip_bit(tile.bytes(), bit);
  }
}

TEST_F(CorruptionTest, IsFoundInAnyBitOfTheData) {
  const std::size_t samples = count_from("SPILLWAY_TEST_FLIPS", 100'000);
  std::mt19937_64 random(test_seed());
  options_.name = "data";
  const auto store = TileStore::create(options_, {{64_KiB, 4_KiB, 40_KiB}});
  write_step(*store, 1);
  commit_step(*store, 1);
  std::vector<PageBuffer> tiles;
  for (std::uint32_t tile = 0; tile < 3; ++tile) {
    tiles.emplace_back(store->layout().tiles[tile].value());
    store->read(TileIndex{tile}, tiles[tile].bytes()).wait();
    store->verify(TileIndex{tile}, tiles[tile].bytes());
  }
  for (std::size_t i = 0; i < samples; ++i) {
    const auto tile = static_cast<std::uint32_t>(random() % 3);
    const std::size_t bit = random() % (tiles[tile].bytes().size() * 8);
    flip_bit(tiles[tile].bytes(), bit);
    ASSERT_THROW(store->verify(TileIndex{tile}, tiles[tile].bytes()), Error)
        << "tile " << tile << " bit " << bit;
    flip_bit(tiles[tile].bytes(), bit);
  }
}

TEST_F(CorruptionTest, OfAHeaderRefusesTheStore) {
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 200; ++i) {
    const std::size_t index = random() % 2;
    const std::uint64_t bit = random() % (map_.header_bytes * 8);
    flip_in_file(index, bit);
    const ErrorCode code = code_of([&] { return TileStore::open(options_); });
    EXPECT_EQ(code, ErrorCode::corrupt_data) << "file " << index << " bit " << bit;
    flip_in_file(index, bit);
  }
  expect_step(*TileStore::open(options_), 2);
}

TEST_F(CorruptionTest, OfOneRecordFallsBackToTheOther) {
  std::mt19937_64 random(test_seed());
  std::uint64_t older = 0;
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t bit = map_.record_offset[0] * 8 + random() % (2 * map_.record_bytes * 8);
    flip_in_file(0, bit);
    const auto store = TileStore::open(options_);
    ASSERT_TRUE(store->committed());
    const std::uint64_t step = store->committed()->step.value();
    ASSERT_TRUE(step == 1 || step == 2);
    older += step == 1 ? 1 : 0;
    expect_step(*store, step);
    flip_in_file(0, bit);
  }
  EXPECT_GT(older, 50U);
  EXPECT_LT(older, 150U);
}

TEST_F(CorruptionTest, OfBothRecordsRefusesTheStore) {
  flip_in_file(0, map_.record_offset[0] * 8 + 999);
  flip_in_file(0, map_.record_offset[1] * 8 + 40'000);
  const auto open = [&] { return TileStore::open(options_); };
  EXPECT_EQ(code_of(open), ErrorCode::corrupt_data);
  EXPECT_THAT(message_of(open), AllOf(HasSubstr("tiles-0.swap"), HasSubstr("its header"),
                                      HasSubstr("its table of tiles")));
  EXPECT_EQ(code_of([&] { return TileStore::has_commit(options_); }), ErrorCode::corrupt_data);
  EXPECT_EQ(code_of([&] { return TileStore::create(options_, layout_of(1, 4_KiB)); }),
            ErrorCode::corrupt_data)
      << "a store that cannot tell whether it has a commit is not replaced";
}

TEST_F(CorruptionTest, OfTheOnlyCommitNeverLooksLikeAFreshStore) {
  StoreOptions options = small_options(scratch_.path() / "young");
  {
    const auto store = TileStore::create(options, layout_of(3, 4_KiB));
    write_step(*store, 1);
    commit_step(*store, 1);
  }
  options_ = options;
  map_ = plan_store(std::vector(3, 4_KiB), 2, 1, {});
  for (const std::uint64_t offset : map_.record_offset) {
    flip_in_file(0, offset * 8 + 100);
    const auto store = TileStore::open(options_);
    ASSERT_TRUE(store->committed());
    EXPECT_EQ(store->committed()->step.value(), 1U);
    expect_step(*store, 1);
    flip_in_file(0, offset * 8 + 100);
  }
}

TEST_F(CorruptionTest, OfATileIsFoundWhenItIsRead) {
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 200; ++i) {
    const auto tile = static_cast<std::uint32_t>(random() % 3);
    const std::size_t index = map_.tiles[tile].file;
    // Step 2 lies in slot 1.
    const std::uint64_t bit = map_.slot_offset(TileIndex{tile}, 1) * 8 + random() % (4096 * 8);
    flip_in_file(index, bit);
    {
      const auto store = TileStore::open(options_);
      PageBuffer target(4096);
      store->read(TileIndex{tile}, target.bytes()).wait();
      EXPECT_EQ(code_of([&] { store->verify(TileIndex{tile}, target.bytes()); }),
                ErrorCode::corrupt_data);
    }
    flip_in_file(index, bit);
  }
}

TEST_F(CorruptionTest, OfTheVersionIsToldFromANewerFormat) {
  PageBuffer area = load(0, 0, map_.header_bytes);
  FileHeader header = decode_header(area.bytes().first(kPageBytes), map_.file_bytes[0], "intact");
  header.version = kFormatVersion + 1;
  header.checksum =
      checksum_of(std::as_bytes(std::span(&header, 1)).first(offsetof(FileHeader, checksum)));
  std::memcpy(area.bytes().data(), &header, sizeof header);
  const auto decode = [&] {
    return decode_header(area.bytes().first(kPageBytes), map_.file_bytes[0], "file");
  };
  EXPECT_EQ(code_of(decode), ErrorCode::not_supported);
  EXPECT_THAT(message_of(decode), HasSubstr(fmt::format("format version {}", kFormatVersion + 1)));
}

TEST(Checksum, OfPiecesIsThatOfTheWhole) {
  std::vector<std::byte> data(130 * kChecksumPiece + 100);
  for (std::size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<std::byte>(i * 2654435761U >> 21);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, kChecksumPiece, kChecksumPiece + 1, 2 * kChecksumPiece,
        64 * kChecksumPiece, 64 * kChecksumPiece + 1, 128 * kChecksumPiece, data.size()}) {
    const std::span<const std::byte> part = std::span(data).first(size);
    std::vector<std::uint64_t> pieces(checksum_pieces(size));
    for (std::size_t p = 0; p < pieces.size(); ++p) pieces[p] = checksum_of_piece(part, p);
    EXPECT_EQ(combine_checksums(pieces), checksum_of(part)) << size;
  }
  // Pieces that change places change the whole.
  const std::uint64_t before = checksum_of(data);
  std::swap_ranges(data.begin(), data.begin() + kChecksumPiece, data.begin() + kChecksumPiece);
  EXPECT_NE(checksum_of(data), before);
}

}  // namespace
}  // namespace spillway::nvme_swap::corruption_test
