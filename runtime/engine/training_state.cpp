#include "runtime/engine/training_state.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "runtime/base/error.hpp"

namespace spillway::engine {
namespace {

constexpr std::uint64_t kVersion = 1;

/// The record as it lies on disk: 8-byte fields, no padding, little-endian machines only.
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
};
static_assert(sizeof(Record) == 64);
static_assert(std::endian::native == std::endian::little);

}  // namespace

void encode(const TrainingState& state, std::vector<std::byte>& bytes) {
  const Record record{.step = state.step,
                      .updates = state.updates,
                      .cursor = state.cursor,
                      .scale = state.loss_scale.scale,
                      .good_steps = state.loss_scale.good_steps,
                      .hysteresis_left = state.loss_scale.hysteresis_left,
                      .skipped = state.skipped,
                      .skipped_in_a_row = state.skipped_in_a_row};
  bytes.resize(sizeof record);
  std::memcpy(bytes.data(), &record, sizeof record);
}

TrainingState decode(std::span<const std::byte> bytes) {
  Record record;
  check(bytes.size() == sizeof record, ErrorCode::corrupt_data,
        fmt::format("a commit record carries {} bytes of training state; this version writes {}",
                    bytes.size(), sizeof record));
  std::memcpy(&record, bytes.data(), sizeof record);
  check(
      record.version == kVersion, ErrorCode::corrupt_data,
      fmt::format("training state of version {}; this version reads {}", record.version, kVersion));
  TrainingState state;
  state.step = record.step;
  state.updates = record.updates;
  state.cursor = record.cursor;
  state.loss_scale = {record.scale, record.good_steps, record.hysteresis_left};
  state.skipped = record.skipped;
  state.skipped_in_a_row = static_cast<std::uint32_t>(record.skipped_in_a_row);
  return state;
}

}  // namespace spillway::engine
