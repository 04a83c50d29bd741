// The swap files on disk: structures, sizes and their checks. Pure functions, any thread.
//
// A store is one file per directory, `<directory>/<name>-<index>.swap`. All numbers are
// little-endian, every part starts on a page (4096 bytes) and unused bytes are zero.
//
//   every file   | FileHeader (1 page) | TileEntry[tile_count], padded to pages |
//   file 0 only  | record area 0 | record area 1 |       each `record_bytes` long
//   every file   | slots of its tiles: tile t, slot s at TileEntry[t].offset + s *
//   TileEntry[t].bytes
//
//   record area  | RecordHeader (1 page) | TileRecord[tile_count], padded to pages |
//
// A header and a record carry checksums (`checksum_of`) over all their bytes, padding included, so
// that any changed bit is noticed. Both areas hold an empty record (generation 0, not committed)
// before the store is complete, and file 0's header is written last: a store with that header is
// whole. Commit g > 0 goes to the area that does not hold the newest record; the first one goes to
// both, one after the other, so that losing one area can never make a committed store look fresh.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nvme_swap/checksum.hpp"
#include "runtime/base/run_id.hpp"
#include "runtime/base/units.hpp"

namespace spillway::nvme_swap {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

inline constexpr std::uint64_t kFileMagic = 0x5041575359415753;    // "SWAYSWAP"
inline constexpr std::uint64_t kRecordMagic = 0x4d4d4f4359415753;  // "SWAYCOMM"
inline constexpr std::uint32_t kFormatVersion = 3;
inline constexpr std::uint32_t kNoSlot = 0xffffffff;  ///< a tile without a version
inline constexpr std::uint32_t kMaxSlots = 16;
inline constexpr std::size_t kMaxCommitPayload = 2048;
using StoreId = std::array<std::uint64_t, 2>;  ///< random, the same in all parts of one store

struct FileHeader {
  std::uint64_t magic = kFileMagic;
  std::uint32_t version = kFormatVersion;
  std::uint32_t slots = 0;
  StoreId store_id{};
  RunId owner{};  ///< the run whose state it is; 0 if the store belongs to no run
  std::uint32_t file_index = 0;
  std::uint32_t file_count = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t tile_count = 0;
  std::uint64_t table_bytes = 0;  ///< of TileEntry[], with padding
  std::uint64_t table_checksum = 0;
  std::array<std::uint64_t, 2> record_offset{};  ///< in file 0
  std::uint64_t record_bytes = 0;                ///< of one area
  std::array<std::byte, kPageBytes - 120> reserved{};
  std::uint64_t checksum = 0;  ///< of all bytes before it
};
static_assert(sizeof(FileHeader) == kPageBytes);

struct TileEntry {
  std::uint64_t bytes = 0;   ///< payload of one slot, a multiple of kPageBytes
  std::uint64_t offset = 0;  ///< of slot 0
  std::uint32_t file = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(TileEntry) == 24);

struct RecordHeader {
  std::uint64_t magic = kRecordMagic;
  std::uint32_t version = kFormatVersion;
  std::uint32_t committed = 0;  ///< 0 in the empty record of a fresh store
  StoreId store_id{};
  std::uint64_t generation = 0;  ///< one more with every commit
  std::uint64_t step = 0;
  std::uint64_t tile_count = 0;
  std::uint64_t table_checksum = 0;
  std::uint64_t payload_bytes = 0;
  std::array<std::byte, kMaxCommitPayload> payload{};
  std::array<std::byte, kPageBytes - 80 - kMaxCommitPayload> reserved{};
  std::uint64_t checksum = 0;  ///< of all bytes before it
};
static_assert(sizeof(RecordHeader) == kPageBytes);

struct TileRecord {
  std::uint64_t checksum = 0;  ///< checksum_of the tile's payload
  std::uint32_t slot = kNoSlot;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(TileRecord) == 16);

/// Layout of a whole store; the headers contain it.
struct StoreMap {
  StoreId store_id{};
  RunId owner{};
  std::uint32_t slots = 2;
  std::vector<TileEntry> tiles{};
  std::vector<std::uint64_t> file_bytes{};
  std::uint64_t header_bytes = 0;  ///< FileHeader and table; the same in every file
  std::array<std::uint64_t, 2> record_offset{};
  std::uint64_t record_bytes = 0;

  [[nodiscard]] std::uint64_t slot_offset(TileIndex tile, std::uint32_t slot) const {
    const TileEntry& entry = tiles[tile.value()];
    return entry.offset + slot * entry.bytes;
  }
};

[[nodiscard]] std::filesystem::path swap_file_path(const std::filesystem::path& directory,
                                                   std::string_view name, std::size_t index);

/// Places `tiles` over as many files as there are `weights`, each in turn where its bytes would be
/// read first if the files were read at rates in proportion to their weights. Throws
/// `Error{invalid_argument}` for a tile that is empty or not a multiple of a page, a number of
/// slots outside 1..kMaxSlots, or a weight that is not positive and finite.
[[nodiscard]] StoreMap plan_store(std::span<const Bytes> tiles, std::uint32_t slots,
                                  std::span<const double> weights, const StoreId& id);
/// Places them over `files` files of equal rate.
[[nodiscard]] StoreMap plan_store(std::span<const Bytes> tiles, std::uint32_t slots,
                                  std::size_t files, const StoreId& id);

/// Fills `target` (`map.header_bytes`) with the header of file `file_index`.
void encode_header(const StoreMap& map, std::size_t file_index, std::span<std::byte> target);
/// Checks the first page of a file of `actual_bytes`. Throws `Error{corrupt_data}` naming `where`
/// and what is wrong, `Error{not_supported}` for another version of the format.
[[nodiscard]] FileHeader decode_header(std::span<const std::byte> page, std::uint64_t actual_bytes,
                                       std::string_view where);
/// Throws `Error{corrupt_data}` naming both runs unless the file of `header` belongs to `owner`.
void check_owner(const FileHeader& header, const RunId& owner, std::string_view where);
/// Checks the table that follows `header` against it and returns the entries.
[[nodiscard]] std::vector<TileEntry> decode_table(const FileHeader& header,
                                                  std::span<const std::byte> table,
                                                  std::string_view where);

/// What is written at a commit.
struct RecordContent {
  std::uint64_t generation = 0;
  bool committed = false;
  StepIndex step{};
  std::span<const std::byte> payload{};
};
/// Returns the table of tiles inside a record area, to be filled before `seal_record`.
[[nodiscard]] std::span<TileRecord> record_table(const StoreMap& map, std::span<std::byte> area);
[[nodiscard]] std::span<const TileRecord> record_table(const StoreMap& map,
                                                       std::span<const std::byte> area);
/// Writes the record's header and checksums around the table that `area` holds.
void seal_record(const StoreMap& map, const RecordContent& content, std::span<std::byte> area);
/// Whether `page` is the whole header of a committed record, of whatever store.
[[nodiscard]] bool is_committed_record(std::span<const std::byte> page);
/// Returns the content of a record area (the payload refers to `area`), or nothing, and why in
/// `reason`.
[[nodiscard]] std::optional<RecordContent> open_record(const StoreMap& map,
                                                       std::span<const std::byte> area,
                                                       std::string& reason);

}  // namespace spillway::nvme_swap
