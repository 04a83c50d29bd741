#include "nvme_swap/detail/store_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "nvme_swap/detail/aligned_buffer.hpp"
#include "nvme_swap/detail/store_recovery.hpp"
#include "runtime/base/error.hpp"

namespace spillway::nvme_swap::detail {
namespace {

bool is_blank(const AlignedBuffer& page) {
  return std::all_of(page.bytes().begin(), page.bytes().end(),
                     [](std::byte byte) { return byte == std::byte{0}; });
}

/// An empty file, or one whose first page was never written: a creation that was cut off.
bool is_blank(const SwapFile& file) {
  AlignedBuffer page(kPageBytes);
  static_cast<void>(file.read_at(0, page.bytes()));
  return is_blank(page);
}

struct FileHead {
  FileHeader header;
  std::vector<TileEntry> tiles;
};

FileHead read_head(const SwapFile& file) {
  const std::string where = file.path().string();
  check(file.size() > 0, ErrorCode::corrupt_data,
        fmt::format("{} is empty where a swap file was written; {}", where, kLossRemedy));
  AlignedBuffer page(kPageBytes);
  static_cast<void>(file.read_at(0, page.bytes()));
  check(!is_blank(page), ErrorCode::corrupt_data,
        fmt::format("{}: its first page is blank where a header was written; {}", where,
                    kLossRemedy));
  FileHead head{.header = decode_header(page.bytes(), file.size(), where), .tiles = {}};
  check(head.header.table_bytes <= head.header.file_bytes, ErrorCode::corrupt_data,
        where + ": the tile table is larger than the file");
  AlignedBuffer table(head.header.table_bytes);
  static_cast<void>(file.read_at(kPageBytes, table.bytes()));
  head.tiles = decode_table(head.header, table.bytes(), where);
  return head;
}

StoreMap map_of(FileHead&& head) {
  return {.store_id = head.header.store_id,
          .owner = head.header.owner,
          .slots = head.header.slots,
          .tiles = std::move(head.tiles),
          .file_bytes = {head.header.file_bytes},
          .header_bytes = kPageBytes + head.header.table_bytes,
          .record_offset = head.header.record_offset,
          .record_bytes = head.header.record_bytes};
}

/// Files in the way of a new store may be replaced if they are what a run left that never
/// committed. Anything else may be somebody's state and is refused.
void check_replaceable(const std::vector<SwapFile>& files) {
  const SwapFile& first = files.front();
  const StoreContent content =
      first.adopted() ? content_of(first, std::nullopt) : StoreContent::nothing;
  if (content == StoreContent::committed) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} holds a committed step; resume that run or choose another directory",
                    first.path().string()));
  }
  for (std::size_t i = 1; i < files.size(); ++i) {
    if (!files[i].adopted() || is_blank(files[i])) continue;
    const bool cut_off = first.adopted() && content == StoreContent::unfinished;
    const bool same_store = content == StoreContent::uncommitted &&
                            read_head(files[i]).header.store_id == read_head(first).header.store_id;
    check(cut_off || same_store, ErrorCode::invalid_argument,
          fmt::format("{} belongs to a store whose first file is not {}; name the directories as "
                      "that run did, or remove the file",
                      files[i].path().string(), first.path().string()));
  }
}

StoreFiles open_each(const StoreOptions& options,
                     const std::function<SwapFile(const std::filesystem::path&)>& open) {
  StoreFiles store;
  store.files.reserve(options.directories.size());
  for (std::size_t i = 0; i < options.directories.size(); ++i) {
    store.files.push_back(open(swap_file_path(options.directories[i], options.name, i)));
    const SwapFile& file = store.files.back();
    FileHead head = read_head(file);
    const FileHeader header = head.header;
    if (options.owner) check_owner(header, *options.owner, file.path().string());
    check(header.file_index == i && header.file_count == options.directories.size(),
          ErrorCode::corrupt_data,
          fmt::format("{} is file {} of a store of {}, not file {} of {}; name the same "
                      "directories in the same order as when it was created",
                      file.path().string(), header.file_index, header.file_count, i,
                      options.directories.size()));
    if (i == 0) {
      store.map = map_of(std::move(head));
      continue;
    }
    store.map.file_bytes.push_back(header.file_bytes);
    check(header.store_id == store.map.store_id, ErrorCode::corrupt_data,
          fmt::format("{} and {} belong to different stores", store.files[0].path().string(),
                      file.path().string()));
  }
  return store;
}

}  // namespace

void check_options(const StoreOptions& options) {
  check(!options.directories.empty(), ErrorCode::invalid_argument,
        "a tile store needs at least one directory");
  check(options.weights.empty() || options.weights.size() == options.directories.size(),
        ErrorCode::invalid_argument,
        fmt::format("{} weights for {} directories", options.weights.size(),
                    options.directories.size()));
  check(options.transfer_bytes.value() > 0 && options.transfer_bytes.value() % kPageBytes == 0,
        ErrorCode::invalid_argument,
        fmt::format("transfers of {} bytes are not a positive multiple of {}",
                    options.transfer_bytes.value(), kPageBytes));
  check(options.tickets > 0, ErrorCode::invalid_argument, "a tile store needs at least one ticket");
  check(!options.name.empty() && options.name.find('/') == std::string::npos,
        ErrorCode::invalid_argument,
        fmt::format("'{}' cannot be the name of a tile store's files", options.name));
}

std::vector<SwapFile> empty_files(const StoreOptions& options) {
  std::vector<SwapFile> files;
  files.reserve(options.directories.size());
  for (std::size_t i = 0; i < options.directories.size(); ++i) {
    std::filesystem::create_directories(options.directories[i]);
    files.push_back(SwapFile::create_or_adopt(
        swap_file_path(options.directories[i], options.name, i), options.lock_patience));
  }
  check_replaceable(files);
  // The first file goes first: from there on the old store counts as unfinished.
  for (SwapFile& file : files) file.truncate();
  return files;
}

StoreFiles create_files(const StoreOptions& options, const StoreLayout& layout) {
  const std::vector<double> weights = options.weights.empty()
                                          ? std::vector<double>(options.directories.size(), 1)
                                          : options.weights;
  StoreFiles store{.map = plan_store(layout.tiles, options.slots, weights, random_run_id().words),
                   .files = empty_files(options)};
  store.map.owner = options.owner.value_or(RunId{});
  check_free_space(store.files, store.map.file_bytes);
  for (std::size_t i = 0; i < store.files.size(); ++i) {
    store.files[i].preallocate(store.map.file_bytes[i]);
  }
  return store;
}

StoreFiles open_files(const StoreOptions& options) {
  return open_each(options, [&options](const std::filesystem::path& path) {
    return SwapFile::open_existing(path, options.lock_patience);
  });
}

StoreFiles open_files_unlocked(const StoreOptions& options) {
  return open_each(options, SwapFile::open_unlocked);
}

void use_cache(std::vector<SwapFile>& files, CacheUse cache) {
  if (cache == CacheUse::always) return;
  for (SwapFile& file : files) file.use_direct_io();
}

void check_head(const SwapFile& file) { static_cast<void>(read_head(file)); }

StoreContent content_of(const SwapFile& first_file, const std::optional<RunId>& owner) {
  if (is_blank(first_file)) {
    check(!has_committed_record(first_file), ErrorCode::corrupt_data,
          fmt::format("{} holds a committed step, and its first page is blank where a header was "
                      "written; {}",
                      first_file.path().string(), kLossRemedy));
    return StoreContent::unfinished;
  }
  FileHead head = read_head(first_file);
  if (owner) check_owner(head.header, *owner, first_file.path().string());
  const StoreMap map = map_of(std::move(head));
  return recover_in_use(map, first_file).commit ? StoreContent::committed
                                                : StoreContent::uncommitted;
}

}  // namespace spillway::nvme_swap::detail
