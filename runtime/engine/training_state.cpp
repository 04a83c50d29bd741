#include "runtime/engine/training_state.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/error.hpp"

namespace spillway::engine {
namespace {

constexpr std::uint64_t kVersion = 2;
// A record of version 1, which was of one rank, ends before the last fields.
constexpr std::size_t kBytesWithoutRanks = 64;
// A record of version 3 is of a stage of a pipeline; behind it are the stage and its layers.
constexpr std::uint64_t kVersionOfStages = 3;
constexpr std::uint32_t kMostStages = 1U << 16;

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
  std::uint32_t ranks = 1;  // of the stage
  std::uint32_t rank = 0;
  std::uint64_t sharding = 0;
};
static_assert(sizeof(Record) == 80);
static_assert(std::endian::native == std::endian::little);

struct StageRecord {
  std::uint32_t stages = 1;
  std::uint32_t stage = 0;
};

Record read_record(std::span<const std::byte> bytes) {
  Record record;
  check(bytes.size() >= sizeof record || bytes.size() == kBytesWithoutRanks,
        ErrorCode::corrupt_data,
        fmt::format("a commit record carries {} bytes of training state; this version writes {}",
                    bytes.size(), sizeof record));
  std::memcpy(&record, bytes.data(), std::min(bytes.size(), sizeof record));
  std::uint64_t version = bytes.size() >= sizeof record ? kVersion : 1;
  if (bytes.size() > sizeof record) version = kVersionOfStages;
  check(record.version == version, ErrorCode::corrupt_data,
        fmt::format("training state of version {} in {} bytes; this version reads {}",
                    record.version, bytes.size(), version));
  const auto last = static_cast<std::uint64_t>(plan::Sharding::parameters);
  check(record.rank < record.ranks && record.sharding <= last, ErrorCode::corrupt_data,
        fmt::format("training state of rank {} of {}, sharded in way {}", record.rank, record.ranks,
                    record.sharding));
  return record;
}

/// Reads the stage and its layers, which are behind the record.
void read_stage(std::span<const std::byte> bytes, SavedPart& part) {
  StageRecord stage;
  const bool whole =
      bytes.size() > sizeof stage && (bytes.size() - sizeof stage) % sizeof(plan::BlockRange) == 0;
  if (whole) std::memcpy(&stage, bytes.data(), sizeof stage);
  check(whole && stage.stage < stage.stages && stage.stages <= kMostStages, ErrorCode::corrupt_data,
        fmt::format("training state of stage {} of {}, with {} bytes of it", stage.stage,
                    stage.stages, bytes.size()));
  part.layers.resize((bytes.size() - sizeof stage) / sizeof(plan::BlockRange));
  std::memcpy(part.layers.data(), bytes.data() + sizeof stage, bytes.size() - sizeof stage);
  std::uint32_t end = 0;
  for (const plan::BlockRange& layers : part.layers) {
    check(end <= layers.first && layers.first < layers.end, ErrorCode::corrupt_data,
          fmt::format("training state of layers {} to {} behind layer {}", layers.first, layers.end,
                      end));
    end = layers.end;
  }
  part.grid.stages = stage.stages;
  part.rank += stage.stage * part.grid.replicas;
}

}  // namespace

SavedPart part_of(const plan::Workload& workload) {
  const plan::Grid grid{.stages = workload.stage.count, .replicas = workload.ranks.count};
  return {.grid = grid,
          .rank = grid.rank_of(workload.stage.index, workload.ranks.rank),
          .sharding = workload.ranks.sharding,
          .layers = workload.stage.chunks};
}

std::string to_text(const SavedPart& part) {
  std::string rank = fmt::format("rank {} of {}", part.rank, part.grid.ranks());
  if (part.layers.empty()) return rank;
  std::vector<std::string> layers;
  layers.reserve(part.layers.size());
  for (const plan::BlockRange& range : part.layers) {
    layers.push_back(fmt::format("{} to {}", range.first, range.end - 1));
  }
  return fmt::format("{} with layers {}", rank, fmt::join(layers, ", "));
}

void encode(const TrainingState& state, const plan::Workload& workload,
            std::vector<std::byte>& bytes) {
  const plan::Ranks& ranks = workload.ranks;
  const plan::Stage& stage = workload.stage;
  const Record record{.version = stage.count == 1 ? kVersion : kVersionOfStages,
                      .step = state.step,
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
  const bool staged = stage.count > 1;
  const std::size_t layers = staged ? stage.chunks.size() * sizeof(plan::BlockRange) : 0;
  bytes.resize(sizeof record + (staged ? sizeof(StageRecord) + layers : 0));
  std::memcpy(bytes.data(), &record, sizeof record);
  if (!staged) return;
  const StageRecord of_stage{.stages = stage.count, .stage = stage.index};
  std::memcpy(bytes.data() + sizeof record, &of_stage, sizeof of_stage);
  std::memcpy(bytes.data() + bytes.size() - layers, stage.chunks.data(), layers);
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

SavedPart decode_part(std::span<const std::byte> bytes) {
  const Record record = read_record(bytes);
  SavedPart part{.grid = {.stages = 1, .replicas = record.ranks},
                 .rank = record.rank,
                 .sharding = static_cast<plan::Sharding>(record.sharding),
                 .layers = {}};
  if (bytes.size() > sizeof record) read_stage(bytes.subspan(sizeof record), part);
  return part;
}

}  // namespace spillway::engine
