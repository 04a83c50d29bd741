#include "runtime/engine/state/training_state.hpp"

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
// A record of version 4 is of a rank of a tensor group, of a pipeline or not; the part stands
// before the layers.
constexpr std::uint64_t kVersionOfParts = 4;
constexpr std::uint32_t kMostStages = 1U << 16;
constexpr std::uint32_t kMostParts = 1U << 16;

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
struct PartRecord {
  std::uint32_t parts = 1;
  std::uint32_t part = 0;
};

/// Takes a structure from the front of what is left of a record.
template <class Structure>
bool take(std::span<const std::byte>& bytes, Structure& structure) {
  if (bytes.size() < sizeof structure) return false;
  std::memcpy(&structure, bytes.data(), sizeof structure);
  bytes = bytes.subspan(sizeof structure);
  return true;
}

Record read_record(std::span<const std::byte> bytes) {
  Record record;
  check(bytes.size() >= sizeof record || bytes.size() == kBytesWithoutRanks,
        ErrorCode::corrupt_data,
        fmt::format("a commit record carries {} bytes of training state; this version writes {}",
                    bytes.size(), sizeof record));
  std::memcpy(&record, bytes.data(), std::min(bytes.size(), sizeof record));
  std::uint64_t version = bytes.size() >= sizeof record ? kVersion : 1;
  if (bytes.size() > sizeof record) version = kVersionOfStages;
  const bool of_part = bytes.size() > sizeof record && record.version == kVersionOfParts;
  check(record.version == version || of_part, ErrorCode::corrupt_data,
        fmt::format("training state of version {} in {} bytes; this version reads {}",
                    record.version, bytes.size(), version));
  const auto last = static_cast<std::uint64_t>(plan::Sharding::parameters);
  check(record.rank < record.ranks && record.sharding <= last, ErrorCode::corrupt_data,
        fmt::format("training state of rank {} of {}, sharded in way {}", record.rank, record.ranks,
                    record.sharding));
  return record;
}

/// Reads layers, which end a record.
std::vector<plan::BlockRange> read_layers(std::span<const std::byte> bytes) {
  std::vector<plan::BlockRange> all(bytes.size() / sizeof(plan::BlockRange));
  if (!all.empty()) std::memcpy(all.data(), bytes.data(), bytes.size());
  std::uint32_t end = 0;
  for (const plan::BlockRange& layers : all) {
    check(end <= layers.first && layers.first < layers.end, ErrorCode::corrupt_data,
          fmt::format("training state of layers {} to {} behind layer {}", layers.first, layers.end,
                      end));
    end = layers.end;
  }
  return all;
}

/// Reads what is behind the record: the stage, the part of a tensor group, and the layers.
void read_place(std::span<const std::byte> bytes, bool of_part, SavedRank& saved) {
  StageRecord stage;
  PartRecord tensor;
  const std::size_t size = bytes.size();
  const bool there = take(bytes, stage) && (!of_part || take(bytes, tensor));
  const bool whole =
      there && bytes.size() % sizeof(plan::BlockRange) == 0 && bytes.empty() == (stage.stages == 1);
  check(whole && stage.stage < stage.stages && stage.stages <= kMostStages &&
            tensor.part < tensor.parts && tensor.parts <= kMostParts,
        ErrorCode::corrupt_data,
        fmt::format("training state of stage {} of {} and part {} of {}, with {} bytes of it",
                    stage.stage, stage.stages, tensor.part, tensor.parts, size));
  saved.layers = read_layers(bytes);
  saved.grid.stages = stage.stages;
  saved.grid.tensor = tensor.parts;
  saved.rank = saved.grid.rank_of(stage.stage, saved.rank, tensor.part);
}

}  // namespace

SavedRank saved_rank_of(const plan::Workload& workload, const plan::GridPlace& place) {
  return {.grid = place.grid,
          .rank = place.rank,
          .sharding = workload.replicas.sharding,
          .layers = workload.stage.chunks};
}

std::string to_text(const SavedRank& saved) {
  std::string rank = fmt::format("rank {} of {}", saved.rank, saved.grid.ranks());
  if (saved.grid.tensor > 1) {
    rank += fmt::format(" with part {} of {}", saved.grid.tensor_index_of(saved.rank),
                        saved.grid.tensor);
  }
  if (saved.layers.empty()) return rank;
  std::vector<std::string> layers;
  layers.reserve(saved.layers.size());
  for (const plan::BlockRange& range : saved.layers) {
    layers.push_back(fmt::format("{} to {}", range.first, range.end - 1));
  }
  return fmt::format("{} with layers {}", rank, fmt::join(layers, ", "));
}

void encode(const TrainingState& state, const SavedRank& rank, std::vector<std::byte>& bytes) {
  const plan::Grid& grid = rank.grid;
  const bool staged = grid.stages > 1;
  const bool of_part = grid.tensor > 1;
  const Record record{.version = of_part  ? kVersionOfParts
                                 : staged ? kVersionOfStages
                                          : kVersion,
                      .step = state.step,
                      .updates = state.updates,
                      .cursor = state.cursor,
                      .scale = state.loss_scale.scale,
                      .good_steps = state.loss_scale.good_steps,
                      .hysteresis_left = state.loss_scale.hysteresis_left,
                      .skipped = state.skipped,
                      .skipped_in_a_row = state.skipped_in_a_row,
                      .ranks = grid.replicas,
                      .rank = grid.replica_of(rank.rank),
                      .sharding = static_cast<std::uint64_t>(rank.sharding)};
  const StageRecord of_stage{.stages = grid.stages, .stage = grid.stage_of(rank.rank)};
  const PartRecord of_group{.parts = grid.tensor, .part = grid.tensor_index_of(rank.rank)};
  const std::size_t layers = staged ? rank.layers.size() * sizeof(plan::BlockRange) : 0;
  bytes.resize(sizeof record + (staged || of_part ? sizeof of_stage : 0) +
               (of_part ? sizeof of_group : 0) + layers);
  std::span<std::byte> left(bytes);
  const auto put = [&left](const void* source, std::size_t size) {
    std::memcpy(left.data(), source, size);
    left = left.subspan(size);
  };
  put(&record, sizeof record);
  if (staged || of_part) put(&of_stage, sizeof of_stage);
  if (of_part) put(&of_group, sizeof of_group);
  if (staged) put(rank.layers.data(), layers);
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

SavedRank decode_rank(std::span<const std::byte> bytes) {
  const Record record = read_record(bytes);
  SavedRank saved{.grid = {.stages = 1, .replicas = record.ranks},
                  .rank = record.rank,
                  .sharding = static_cast<plan::Sharding>(record.sharding),
                  .layers = {}};
  if (bytes.size() > sizeof record) {
    read_place(bytes.subspan(sizeof record), record.version == kVersionOfParts, saved);
  }
  return saved;
}

}  // namespace spillway::engine
