#include "runtime/engine/state/saved_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "offload/host/host_backend.hpp"
#include "runtime/base/log.hpp"
#include "runtime/plan/pipeline/stages.hpp"

namespace spillway::engine {
namespace {

/// Runs `work` on a rank's store; where there are several, errors are prefixed with the rank.
template <class Work>
auto name_rank(std::string_view rank, const Work& work) {
  try {
    return work();
  } catch (const Overtaken&) {
    throw;
  } catch (const Error& error) {
    if (rank.empty()) throw;
    throw Error(error.code(), fmt::format("{}: {}", rank, error.what()), error.native(),
                error.where());
  }
}

std::string rank_text(std::uint32_t rank, std::size_t count) {
  return count == 1 ? "" : fmt::format("rank {} of {}", rank, count);
}

bool begins_with(std::span<const Bytes> tiles, std::span<const Bytes> first) {
  return tiles.size() >= first.size() && std::ranges::equal(tiles.first(first.size()), first);
}

void clear(const cpu_adam::WideState& wide) {
  for (const std::span<float> values : {wide.master, wide.m, wide.v}) {
    std::ranges::fill(values, 0.0F);
  }
}

cpu_adam::WideState range_of(const cpu_adam::WideState& wide, std::size_t first,
                             std::size_t count) {
  const auto range = [&](std::span<float> values) {
    return values.empty() ? values : values.subspan(first, count);
  };
  return {.master = range(wide.master), .m = range(wide.m), .v = range(wide.v)};
}

}  // namespace

Overtaken::Overtaken(const std::filesystem::path& state)
    : Error(ErrorCode::busy,
            fmt::format("the state in {} is written by a process that commits steps faster than "
                        "they can be read; interrupt it first, or read a checkpoint that it keeps "
                        "(spillway.save_every)",
                        state.string())) {}

std::uint32_t saved_ranks(const nvme_swap::StoreOptions& first) {
  return decode_rank(nvme_swap::CommittedTiles(first).commit().payload).grid.ranks();
}

SavedState::SavedState(const SavedShape& shape, const std::vector<nvme_swap::StoreOptions>& stores)
    : shape_(shape) {
  check(!stores.empty(), ErrorCode::invalid_argument, "a saved state is that of one rank or more");
  open(stores);
  take_common_step();
  for (std::uint32_t rank = 0; rank < stores.size(); ++rank) {
    name_rank(rank_text(rank, stores.size()), [&] {
      check_rank(rank, stores.size());
      make_slots(rank);
    });
  }
  check_whole();
  for (const Shard& shard : shards_) {
    for (std::uint32_t tile = 0; tile < shard.slots.tiles().size(); ++tile) {
      largest_slot_ = std::max(largest_slot_, Bytes{shard.slots.layout(tile).disk_bytes});
    }
  }
  const Bytes all = largest_slot_ * std::uint64_t{grid_.tensor};
  backend_ = offload::make_host_backend({.device_capacity = Bytes{}, .pinned_capacity = all});
  staging_ = {*backend_, all};
  loaded_.resize(grid_.tensor);
  of_whole_.emplace([this](BlockIndex block, ElementCount first, const cpu_adam::WideState& wide) {
    read(block, first, wide);
  });
}

void SavedState::open(const std::vector<nvme_swap::StoreOptions>& stores) {
  for (std::uint32_t rank = 0; rank < stores.size(); ++rank) {
    name_rank(rank_text(rank, stores.size()), [&] {
      shards_.push_back({.folder = stores[rank].directories.front(),
                         .slots = {},
                         .tiles = std::make_unique<nvme_swap::CommittedTiles>(stores[rank])});
    });
  }
}

/// Ranks that were killed between two commits, or are just committing, are one step apart. A resume
/// goes on from the least step too.
void SavedState::take_common_step() {
  const auto step_of = [](const Shard& shard) { return shard.tiles->commit().step; };
  const StepIndex least = step_of(*std::ranges::min_element(shards_, {}, step_of));
  for (std::uint32_t rank = 0; rank < shards_.size(); ++rank) {
    const Shard& shard = shards_[rank];
    const StepIndex newest = step_of(shard);
    if (newest == least) continue;
    try {
      name_rank(rank_text(rank, shards_.size()), [&] { shard.tiles->take(least); });
    } catch (const Error&) {
      if (overtaken()) throw Overtaken(shard.folder);
      throw;
    }
    log_warning("rank {} of {} has committed step {}, which another rank has not: step {} is read",
                rank, shards_.size(), newest.value(), least.value());
  }
}

/// A rank writes over a step's tiles only once every rank has committed the step after it.
bool SavedState::overtaken() const {
  return std::ranges::any_of(shards_, [](const Shard& s) { return s.tiles->has_moved_on(); });
}

/// Checks a rank's record against that of the first, from which it takes the grid and the state.
void SavedState::check_rank(std::uint32_t rank, std::size_t stores) {
  const Shard& shard = shards_[rank];
  const std::vector<std::byte>& record = shard.tiles->commit().payload;
  const SavedRank saved = decode_rank(record);
  const TrainingState state = decode(record);
  const std::string where = fmt::format("{} holds step {} of rank {} of {}", shard.folder.string(),
                                        state.step, saved.rank, saved.grid.ranks());
  check(saved.grid.ranks() == stores && saved.rank == rank, ErrorCode::corrupt_data,
        fmt::format("{}, where that of rank {} of {} should be; give the folders of all ranks, in "
                    "their order",
                    where, rank, stores));
  if (rank == 0) {
    grid_ = saved.grid;
    workload_.replicas.count = grid_.replicas;
    workload_.replicas.sharding = saved.sharding;
    state_ = state;
    return;
  }
  check(saved.grid == grid_ && saved.sharding == sharding(), ErrorCode::corrupt_data,
        fmt::format("{}, which shares out another part of the state than rank 0 in {}", where,
                    shards_[0].folder.string()));
  check(state == state_, ErrorCode::corrupt_data,
        fmt::format("{}, with other counts or another loss scale than rank 0 in {}: the folders "
                    "are not of one run",
                    where, shards_[0].folder.string()));
}

/// A tensor group has blocks of its own. All its ranks have those of the first.
void SavedState::make_parts() {
  std::vector<ElementCount> blocks = shape_.blocks;
  if (grid_.tensor > 1) {
    blocks.clear();
    for (std::uint32_t part = 0; part < grid_.tensor; ++part) {
      parts_.emplace_back(shape_.model, model::TensorPart{.index = part, .count = grid_.tensor});
      windows_.emplace_back(
          [this, part](BlockIndex block, ElementCount first, const cpu_adam::WideState& wide) {
            read_part(part, block, first, wide);
          });
    }
    for (const model::BlockLayout& block : parts_.front().part().blocks) {
      blocks.push_back(block.padded_parameters);
    }
  }
  for (const ElementCount block : blocks) {
    plan::BlockShape& padded = workload_.blocks.emplace_back();
    padded.parameters = block;
    padded.padded_parameters = plan::pad(block, workload_.replicas.count);
  }
}

void SavedState::make_slots(std::uint32_t rank) {
  if (rank == 0) make_parts();
  Shard& shard = shards_[rank];
  plan::Workload own = workload_;
  own.stage.chunks = decode_rank(shard.tiles->commit().payload).layers;
  plan::empty_other_stages(own);
  shard.slots = {shape_.format,
                 plan::make_tiles(own, shape_.tile_parameters, grid_.replica_of(rank)),
                 own.blocks.size()};
  const std::uint32_t stage = grid_.stage_of(rank);
  stage_of_.resize(own.blocks.size());
  for (std::uint32_t block = 0; block < own.blocks.size(); ++block) {
    if (!own.runs(block)) continue;
    check(stage_of_[block].value_or(stage) == stage, ErrorCode::corrupt_data,
          fmt::format("{} holds block {}, and so does a rank of stage {}", shard.folder.string(),
                      block, stage_of_[block].value_or(0)));
    stage_of_[block] = stage;
  }
  // What lies behind them is the stash of a run with delayed updates, which it alone goes on from.
  check(begins_with(shard.tiles->layout().tiles, shard.slots.store_layout().tiles),
        ErrorCode::corrupt_data,
        fmt::format("{} holds step {} of another model, tile size or state format than the run's "
                    "configuration says",
                    shard.folder.string(), state_.step));
}

/// The stages of a pipeline have the blocks of the model among them.
void SavedState::check_whole() const {
  const auto missing = std::ranges::find_if(stage_of_, [](const auto& s) { return !s; });
  check(missing == stage_of_.end(), ErrorCode::corrupt_data,
        fmt::format("no rank of {} has block {} of the model", folder().string(),
                    missing - stage_of_.begin()));
}

std::span<std::byte> SavedState::staging_of(std::uint32_t rank) const {
  const std::size_t bytes = largest_slot_.value();
  return staging_.host().subspan(grid_.tensor_index_of(rank) * bytes, bytes);
}

void SavedState::load(std::uint32_t rank, std::uint32_t tile) const {
  auto& loaded = loaded_[grid_.tensor_index_of(rank)];
  if (loaded == std::pair{rank, tile}) return;
  loaded.reset();
  const Shard& shard = shards_[rank];
  const std::string name = rank_text(rank, shards_.size());
  name_rank(name.empty() ? name : fmt::format("{} at step {}", name, state_.step), [&] {
    const auto slot = shard.slots.slot_of(tile, staging_of(rank));
    if (shard.slots.load(*shard.tiles, tile, slot) == nvme_swap::TileRead::whole) return;
    if (overtaken()) throw Overtaken(shard.folder);
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format("tile {} in {} is not what was written; put its files back from a copy, or "
                    "take a kept checkpoint",
                    tile, shard.folder.string()));
  });
  loaded = {rank, tile};
}

void SavedState::verify() const {
  for (std::uint32_t rank = 0; rank < shards_.size(); ++rank) {
    const std::size_t tiles = shards_[rank].slots.tiles().size();
    for (std::uint32_t tile = 0; tile < tiles; ++tile) load(rank, tile);
  }
}

/// Calls `body(Piece)` with each part of the range loaded, in order. Where every replica has all,
/// the first one answers.
template <class Body>
void SavedState::for_each_piece(std::uint32_t part, BlockIndex block, ElementCount first,
                                ElementCount count, const Body& body) const {
  const std::uint64_t shard_size = workload_.shard_elements(block.value()).value();
  const std::uint64_t saved = shard_size * workload_.shards();
  const std::uint64_t end = std::min((first + count).value(), saved);
  for (std::uint64_t at = first.value(); at < end;) {
    const auto shard = static_cast<std::uint32_t>(at / shard_size);
    const std::uint32_t rank = grid_.rank_of(*stage_of_[block.value()], shard, part);
    const StateSlots& slots = shards_[rank].slots;
    const std::uint64_t tile_size = shape_.tile_parameters.value();
    const auto tile = slots.tiles_of(plan::PoolKind::host_state, block.value()).first +
                      static_cast<std::uint32_t>((at - shard * shard_size) / tile_size);
    const plan::Tile& t = slots.tiles()[tile];
    const std::uint64_t last = std::min(end, (t.first + t.count).value());
    load(rank, tile);
    body(Piece{.slot = staging_of(rank).data(),
               .layout = cpu_adam::part_of(slots.layout(tile), at - t.first.value(), last - at),
               .first = at - first.value(),
               .count = last - at});
    at = last;
  }
}

void SavedState::read_part(std::uint32_t part, BlockIndex block, ElementCount first,
                           const cpu_adam::WideState& wide) const {
  clear(wide);
  const ElementCount count{wide.master.size()};
  for_each_piece(part, block, first, count, [&](const Piece& piece) {
    cpu_adam::unpack_state(piece.layout, piece.slot, piece.slot + piece.layout.parameters,
                           range_of(wide, piece.first, piece.count));
  });
}

void SavedState::read(BlockIndex block, ElementCount first, const cpu_adam::WideState& wide) const {
  if (parts_.empty()) return read_part(0, block, first, wide);
  clear(wide);
  for (std::uint32_t part = 0; part < parts_.size(); ++part) {
    parts_[part].visit_part(
        block, first, ElementCount{wide.master.size()}, [&](const model::PartRun& run) {
          windows_[part].read(run.block, run.first, range_of(wide, run.at, run.count));
        });
  }
}

namespace {

/// Writes a tile's slot from values in fp32, which `read` gives.
template <class Read>
void make_slot(const cpu_adam::StateLayout& layout, std::span<std::byte> slot, const Read& read) {
  std::vector<float> values(3 * layout.count);
  const std::span<float> all(values);
  const cpu_adam::WideState wide{.master = all.first(layout.count),
                                 .m = all.subspan(layout.count, layout.count),
                                 .v = all.last(layout.count)};
  read(wide);
  cpu_adam::pack_state(layout, {wide.master, wide.m, wide.v}, slot.data(),
                       slot.data() + layout.parameters);
}

}  // namespace

void SavedState::read_slot(BlockIndex block, ElementCount first,
                           const cpu_adam::StateLayout& layout, std::span<std::byte> slot) const {
  if (layout.format != shape_.format || !parts_.empty()) {
    return make_slot(layout, slot,
                     [&](const cpu_adam::WideState& wide) { read(block, first, wide); });
  }
  std::ranges::fill(slot, std::byte{0});  // zero in every format
  for_each_piece(0, block, first, ElementCount{layout.count}, [&](const Piece& piece) {
    cpu_adam::copy_state(piece.layout, piece.slot,
                         cpu_adam::part_of(layout, piece.first, piece.count), slot.data());
  });
}

void SavedState::read_slot(const model::PartMap& part, BlockIndex block, ElementCount first,
                           const cpu_adam::StateLayout& layout, std::span<std::byte> slot) const {
  make_slot(layout, slot, [&](const cpu_adam::WideState& wide) {
    clear(wide);
    part.visit_whole(block, first, ElementCount{layout.count}, [&](const model::PartRun& run) {
      of_whole_->read(run.block, run.first, range_of(wide, run.at, run.count));
    });
  });
}

}  // namespace spillway::engine
