#include "nvme_swap/format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/base/error.hpp"

namespace spillway::nvme_swap {
namespace {

template <class Header>
std::uint64_t header_checksum(const Header& header) {
  return checksum_of(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, checksum)));
}

[[noreturn]] void corrupt(std::string_view where, const std::string& what) {
  throw Error(
      ErrorCode::corrupt_data,
      fmt::format("{}: {}; the file is damaged or not a swap file of this run", where, what));
}

std::uint64_t pages(std::uint64_t bytes) { return round_up(bytes, kPageBytes); }

/// The file that would have read all of its tiles first, were this one added to it.
std::size_t next_file(std::span<const std::uint64_t> placed, std::span<const double> weights,
                      std::uint64_t bytes) {
  std::size_t best = 0;
  double best_time = std::numeric_limits<double>::infinity();
  for (std::size_t file = 0; file < placed.size(); ++file) {
    const double time = static_cast<double>(placed[file] + bytes) / weights[file];
    if (time < best_time) {
      best = file;
      best_time = time;
    }
  }
  return best;
}

bool entry_is_sound(const TileEntry& entry, const FileHeader& header) {
  if (entry.file >= header.file_count || entry.reserved != 0) return false;
  if (entry.bytes == 0 || entry.bytes % kPageBytes != 0 || entry.offset % kPageBytes != 0) {
    return false;
  }
  return entry.file != header.file_index ||
         (entry.bytes <= header.file_bytes / header.slots &&
          entry.offset <= header.file_bytes - header.slots * entry.bytes);
}

}  // namespace

std::filesystem::path swap_file_path(const std::filesystem::path& directory, std::string_view name,
                                     std::size_t index) {
  return directory / fmt::format("{}-{}.swap", name, index);
}

StoreMap plan_store(std::span<const Bytes> tiles, std::uint32_t slots, std::size_t files,
                    const StoreId& id) {
  return plan_store(tiles, slots, std::vector<double>(files, 1), id);
}

StoreMap plan_store(std::span<const Bytes> tiles, std::uint32_t slots,
                    std::span<const double> weights, const StoreId& id) {
  const std::size_t files = weights.size();
  check(slots >= 1 && slots <= kMaxSlots, ErrorCode::invalid_argument,
        fmt::format("a tile cannot have {} slots: choose 1 to {}", slots, kMaxSlots));
  check(files > 0, ErrorCode::invalid_argument, "a tile store needs at least one directory");
  check(tiles.size() < kNoSlot, ErrorCode::invalid_argument,
        fmt::format("a tile store cannot hold {} tiles", tiles.size()));
  for (const double weight : weights) {
    check(std::isfinite(weight) && weight > 0, ErrorCode::invalid_argument,
          fmt::format("a directory cannot have weight {}", weight));
  }
  StoreMap map{.store_id = id, .slots = slots};
  map.header_bytes = kPageBytes + pages(tiles.size() * sizeof(TileEntry));
  map.record_bytes = kPageBytes + pages(tiles.size() * sizeof(TileRecord));
  map.record_offset = {map.header_bytes, map.header_bytes + map.record_bytes};
  map.file_bytes.assign(files, map.header_bytes);
  map.file_bytes[0] += 2 * map.record_bytes;
  map.tiles.reserve(tiles.size());
  std::vector<std::uint64_t> placed(files, 0);  // payload bytes
  for (std::size_t tile = 0; tile < tiles.size(); ++tile) {
    const std::uint64_t bytes = tiles[tile].value();
    check(bytes > 0 && bytes % kPageBytes == 0, ErrorCode::invalid_argument,
          fmt::format("tile {} of {} bytes is not a positive multiple of {}", tile, bytes,
                      kPageBytes));
    const std::size_t file = next_file(placed, weights, bytes);
    placed[file] += bytes;
    map.tiles.push_back(
        {.bytes = bytes, .offset = map.file_bytes[file], .file = static_cast<std::uint32_t>(file)});
    map.file_bytes[file] += slots * bytes;
  }
  return map;
}

void encode_header(const StoreMap& map, std::size_t file_index, std::span<std::byte> target) {
  SPILLWAY_ASSERT(target.size() == map.header_bytes);
  std::fill(target.begin(), target.end(), std::byte{0});
  const std::span<std::byte> table = target.subspan(kPageBytes);
  const auto entries = std::as_bytes(std::span(map.tiles));
  std::copy(entries.begin(), entries.end(), table.begin());
  FileHeader header;
  header.slots = map.slots;
  header.store_id = map.store_id;
  header.owner = map.owner;
  header.file_index = static_cast<std::uint32_t>(file_index);
  header.file_count = static_cast<std::uint32_t>(map.file_bytes.size());
  header.file_bytes = map.file_bytes[file_index];
  header.tile_count = map.tiles.size();
  header.table_bytes = table.size();
  header.table_checksum = checksum_of(table);
  header.record_offset = map.record_offset;
  header.record_bytes = map.record_bytes;
  header.checksum = header_checksum(header);
  std::memcpy(target.data(), &header, sizeof header);
}

FileHeader decode_header(std::span<const std::byte> page, std::uint64_t actual_bytes,
                         std::string_view where) {
  SPILLWAY_ASSERT(page.size() == kPageBytes);
  FileHeader header;
  std::memcpy(&header, page.data(), sizeof header);
  if (header.magic != kFileMagic) corrupt(where, "no swap file header");
  if (header.version != kFormatVersion && header.checksum == header_checksum(header)) {
    throw Error(ErrorCode::not_supported,
                fmt::format("{} has format version {}; this program reads version {}", where,
                            header.version, kFormatVersion));
  }
  const std::uint64_t checksum = header_checksum(header);
  if (header.checksum != checksum) {
    corrupt(where, fmt::format("the header's checksum is {:016x} where {:016x} was written",
                               checksum, header.checksum));
  }
  if (actual_bytes < header.file_bytes) {
    corrupt(where, fmt::format("the file has {} bytes where {} were written", actual_bytes,
                               header.file_bytes));
  }
  const bool sizes_agree =
      header.tile_count < kNoSlot &&
      header.table_bytes == pages(header.tile_count * sizeof(TileEntry)) &&
      header.record_bytes == kPageBytes + pages(header.tile_count * sizeof(TileRecord)) &&
      header.slots >= 1 && header.slots <= kMaxSlots && header.file_index < header.file_count;
  if (!sizes_agree) corrupt(where, "the header contradicts itself");
  return header;
}

void check_owner(const FileHeader& header, const RunId& owner, std::string_view where) {
  if (header.owner == owner) return;
  const std::string other =
      header.owner == RunId{} ? "no run" : fmt::format("run {}", to_text(header.owner));
  throw Error(ErrorCode::corrupt_data,
              fmt::format("{} belongs to {}, not to run {}; put back this run's own file, or name "
                          "the directory where it lies",
                          where, other, to_text(owner)));
}

std::vector<TileEntry> decode_table(const FileHeader& header, std::span<const std::byte> table,
                                    std::string_view where) {
  const std::uint64_t checksum = checksum_of(table);
  if (checksum != header.table_checksum) {
    corrupt(where, fmt::format("the tile table's checksum is {:016x} where {:016x} was written",
                               checksum, header.table_checksum));
  }
  std::vector<TileEntry> entries(header.tile_count);
  if (!entries.empty()) {
    std::memcpy(entries.data(), table.data(), entries.size() * sizeof(TileEntry));
  }
  for (std::size_t tile = 0; tile < entries.size(); ++tile) {
    if (!entry_is_sound(entries[tile], header)) {
      corrupt(where, fmt::format("tile {} lies outside the file", tile));
    }
  }
  return entries;
}

// The areas are page aligned, and TileRecord is made of plain numbers.
std::span<TileRecord> record_table(const StoreMap& map, std::span<std::byte> area) {
  return {reinterpret_cast<TileRecord*>(area.data() + kPageBytes), map.tiles.size()};
}
std::span<const TileRecord> record_table(const StoreMap& map, std::span<const std::byte> area) {
  return {reinterpret_cast<const TileRecord*>(area.data() + kPageBytes), map.tiles.size()};
}

void seal_record(const StoreMap& map, const RecordContent& content, std::span<std::byte> area) {
  SPILLWAY_ASSERT(area.size() == map.record_bytes);
  SPILLWAY_ASSERT(content.payload.size() <= kMaxCommitPayload);
  const std::span<std::byte> table = area.subspan(kPageBytes);
  std::fill(table.begin() + static_cast<std::ptrdiff_t>(map.tiles.size() * sizeof(TileRecord)),
            table.end(), std::byte{0});
  RecordHeader header;
  header.committed = content.committed ? 1 : 0;
  header.store_id = map.store_id;
  header.generation = content.generation;
  header.step = content.step.value();
  header.tile_count = map.tiles.size();
  header.table_checksum = checksum_of(table);
  header.payload_bytes = content.payload.size();
  std::copy(content.payload.begin(), content.payload.end(), header.payload.begin());
  header.checksum = header_checksum(header);
  std::memcpy(area.data(), &header, sizeof header);
}

bool is_committed_record(std::span<const std::byte> page) {
  SPILLWAY_ASSERT(page.size() == kPageBytes);
  RecordHeader header;
  std::memcpy(&header, page.data(), sizeof header);
  return header.magic == kRecordMagic && header.committed != 0 &&
         header.checksum == header_checksum(header);
}

std::optional<RecordContent> open_record(const StoreMap& map, std::span<const std::byte> area,
                                         std::string& reason) {
  SPILLWAY_ASSERT(area.size() == map.record_bytes);
  RecordHeader header;
  std::memcpy(&header, area.data(), sizeof header);
  if (header.magic != kRecordMagic || header.checksum != header_checksum(header)) {
    reason = "its header is not what was written";
    return std::nullopt;
  }
  if (header.version != kFormatVersion || header.store_id != map.store_id ||
      header.tile_count != map.tiles.size() || header.payload_bytes > kMaxCommitPayload) {
    reason = "it belongs to another store";
    return std::nullopt;
  }
  if (header.table_checksum != checksum_of(area.subspan(kPageBytes))) {
    reason = "its table of tiles is not what was written";
    return std::nullopt;
  }
  for (const TileRecord& tile : record_table(map, area)) {
    if (tile.slot != kNoSlot && tile.slot >= map.slots) {
      reason = "it names a slot that does not exist";
      return std::nullopt;
    }
  }
  return RecordContent{
      .generation = header.generation,
      .committed = header.committed != 0,
      .step = StepIndex{header.step},
      .payload = area.subspan(offsetof(RecordHeader, payload), header.payload_bytes)};
}

}  // namespace spillway::nvme_swap
