#include "nvme_swap/detail/store_recovery.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "nvme_swap/detail/aligned_buffer.hpp"
#include "runtime/base/error.hpp"

namespace spillway::nvme_swap::detail {
namespace {

/// Records begin behind the table of tiles; no store that can be made has a longer one.
constexpr std::uint64_t kRecordSearchBytes = 64 << 20;
/// How often the records of a store in use are looked at before they count as damaged.
constexpr int kRecordAttempts = 10;

bool is_commit_of(const std::optional<RecordContent>& record, StepIndex step) {
  return record && record->committed && record->step == step;
}

}  // namespace

Recovered recover(const StoreMap& map, const SwapFile& first_file, std::optional<StepIndex> at) {
  const std::string where = first_file.path().string();
  std::array<AlignedBuffer, 2> areas{AlignedBuffer(map.record_bytes),
                                     AlignedBuffer(map.record_bytes)};
  std::array<std::optional<RecordContent>, 2> records;
  std::array<std::string, 2> reasons;
  for (std::size_t i = 0; i < 2; ++i) {
    static_cast<void>(first_file.read_at(map.record_offset[i], areas[i].bytes()));
    records[i] = open_record(map, areas[i].bytes(), reasons[i]);
  }
  check(records[0] || records[1], ErrorCode::corrupt_data,
        fmt::format("{}: neither commit record can be used (first: {}; second: {})", where,
                    reasons[0], reasons[1]));
  Recovered result;
  const bool second =
      !records[0] || (records[1] && records[1]->generation > records[0]->generation);
  result.area = second ? 1 : 0;
  if (at && !is_commit_of(records[result.area], *at)) {
    check(is_commit_of(records[1 - result.area], *at), ErrorCode::corrupt_data,
          fmt::format("{} is to go on from step {}, and its newest commit is of step {}; {}", where,
                      at->value(), records[result.area]->step.value(), kLossRemedy));
    result.area = 1 - result.area;
    result.is_older = true;
  }
  const RecordContent& record = *records[result.area];
  if (!records[1 - result.area]) {
    result.warning = fmt::format(
        "{}: commit record {} cannot be used ({}), as after a crash during a commit; continuing "
        "from step {}",
        where, 1 - result.area, reasons[1 - result.area], record.step.value());
  }
  const auto table = record_table(map, std::as_const(areas[result.area]).bytes());
  result.tiles.assign(table.begin(), table.end());
  result.generation = record.generation;
  if (record.committed) {
    result.commit = CommitHeader{.step = record.step,
                                 .payload = {record.payload.begin(), record.payload.end()}};
  }
  return result;
}

Recovered recover_in_use(const StoreMap& map, const SwapFile& first_file,
                         std::optional<StepIndex> at) {
  for (int attempt = 1;; ++attempt) {
    try {
      return recover(map, first_file, at);
    } catch (const Error& error) {
      // Commits may have written over each area just while it was read. No two write at once, so
      // that the next look has nothing to wait for.
      if (error.code() != ErrorCode::corrupt_data || attempt == kRecordAttempts) throw;
    }
  }
}

void check_committed(const Recovered& recovered, const SwapFile& first_file) {
  check(recovered.commit.has_value(), ErrorCode::corrupt_data,
        fmt::format("{} holds no committed step; {}", first_file.path().string(), kLossRemedy));
}

bool has_committed_record(const SwapFile& first_file) {
  AlignedBuffer page(kPageBytes);
  const std::uint64_t end = std::min(first_file.size(), kRecordSearchBytes);
  for (std::uint64_t offset = kPageBytes; offset + kPageBytes <= end; offset += kPageBytes) {
    static_cast<void>(first_file.read_at(offset, page.bytes()));
    if (is_committed_record(page.bytes())) return true;
  }
  return false;
}

}  // namespace spillway::nvme_swap::detail
