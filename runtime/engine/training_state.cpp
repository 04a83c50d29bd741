#include "runtime/engine/training_state.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "runtime/base/error.hpp"

namespace spillway::engine {
namespace {

constexpr std::uint64_t kVersion = 2;
// A record of version 1, which was of one rank, ends before the last fields.
constexpr std::size_t kBytesWithoutRanks = 64;

/// The record as it lies on disk: no padding, little-endian machines only.
struct Record {
  std::uint64_t version = kVersion;
  std::uint64_t step = 0;
  std::uint64_t updates = 0;
  std::uint64_t cursor = 0;
  double scale = 0;
  std::uint32_t good_steps = 0;
  std::uint32_t hysteresis_left = 0;
  std::uint64_t skipped = 0;
  std::uint64_t skipped_in_a_row = 0;
  std::uint32_t ranks = 1;
  std::uint32_t rank = 0;
  std::uint64_t sharding = 0;
};
static_assert(sizeof(Record) == 80);
static_assert(std::endian::native == std::endian::little);

Record read_record(std::span<const std::byte> bytes) {
  Record record;
  check(bytes.size() == sizeof record || bytes.size() == kBytesWithoutRanks,
        ErrorCode::corrupt_data,
        fmt::format("a commit record carries {} bytes of training state; this version writes {}",
                    bytes.size(), sizeof record));
  std::memcpy(&record, bytes.data(), bytes.size());
  const std::uint64_t version = bytes.size() == sizeof record ? kVersion : 1;
  check(record.version == version, ErrorCode::corrupt_data,
        fmt::format("training state of version {} in {} bytes; this version reads {}",
                    record.version, bytes.size(), version));
  const auto last = static_cast<std::uint64_t>(plan::Sharding::parameters);
  check(record.rank < record.ranks && record.sharding <= last, ErrorCode::corrupt_data,
        fmt::format("training state of rank {} of {}, sharded in way {}", record.rank, record.ranks,
                    record.sharding));
  return record;
}

}  // namespace

void encode(const TrainingState& state, const plan::Ranks& ranks, std::vector<std::byte>& bytes) {
  const Record record{.step = state.step,
                      .updates = state.updates,
                      .cursor = state.cursor,
                      .scale = state.loss_scale.scale,
                      .good_steps = state.loss_scale.good_steps,
                      .hysteresis_left = state.loss_scale.hysteresis_left,
                      .skipped = state.skipped,
                      .skipped_in_a_row = state.skipped_in_a_row,
                      .ranks = ranks.count,
                      .rank = ranks.rank,
                      .sharding = static_cast<std::uint64_t>(ranks.sharding)};
  bytes.resize(sizeof record);
  std::memcpy(bytes.data(), &record, sizeof record);
}

TrainingState decode(std::span<const std::byte> bytes) {
  const Record record = read_record(bytes);
  TrainingState state;
  state.step = record.step;
  state.updates = record.updates;
  state.cursor = record.cursor;
  state.loss_scale = {record.scale, record.good_steps, record.hysteresis_left};
  state.skipped = record.skipped;
  state.skipped_in_a_row = static_cast<std::uint32_t>(record.skipped_in_a_row);
  return state;
}

plan::Ranks decode_ranks(std::span<const std::byte> bytes) {
  const Record record = read_record(bytes);
  return {.count = record.ranks,
          .rank = record.rank,
          .sharding = static_cast<plan::Sharding>(record.sharding)};
}

}  // namespace spillway::engine
