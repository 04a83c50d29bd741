#include "runtime/engine/training/state_io.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/engine/step/step_engine.hpp"

namespace spillway::engine {

using plan::PoolKind;
using plan::Tier;

StateIo::StateIo(StepEngine& engine)
    : engine_(engine),
      workload_(engine.workload()),
      placement_(engine.placement()),
      memory_(engine.memory()),
      slots_(engine.slots()),
      streams_(engine.streams()),
      store_(engine.store()),
      isa_(engine.isa()),
      ranks_(engine.ranks()) {}

std::span<std::byte> StateIo::staging(std::uint32_t tile) const {
  return slots_.slot_of(tile, engine_.borrow_staging());
}

void StateIo::initialize(const model::ParameterSource& source) {
  std::vector<float> masters;
  for (std::uint32_t tile = 0; tile < slots_.tiles().size(); ++tile) {
    const plan::Tile& t = slots_.tiles()[tile];
    const std::span<std::byte> slot = staging(tile);
    const cpu_adam::StateLayout& layout = slots_.layout(tile);
    masters.assign(t.count.value(), 0);
    // The shards of the last ranks may be nothing but padding of a block.
    const std::uint64_t end = workload_.blocks[t.block].parameters.value();
    const std::uint64_t there = end - std::min(end, t.first.value());
    const auto given = std::span(masters).first(std::min<std::uint64_t>(masters.size(), there));
    if (!given.empty()) source.read(BlockIndex{t.block}, t.first, given);
    cpu_adam::pack_state(layout, {masters, {}, {}}, slot.data(), slot.data() + layout.parameters);
    bring_home(tile, Stored::no);
  }
  upload_residents();
}

void StateIo::restore() {
  for (std::uint32_t tile = 0; tile < slots_.tiles().size(); ++tile) {
    slots_.load(*store_, tile, staging(tile));
    bring_home(tile, Stored::yes);
  }
  upload_residents();
  if (slots_.with_stash()) restore_stash();
}

StateIo::Stash StateIo::stash_of(std::uint32_t tile) const {
  if (placement_.blocks[slots_.tiles()[tile].block].resident()) {
    return {.device = memory_.device({PoolKind::stashed_parameters, tile}), .host = {}};
  }
  return {.device = {}, .host = memory_.host({PoolKind::host_stash, tile})};
}

void StateIo::restore_stash() {
  for (std::uint32_t tile = 0; tile < slots_.tiles().size(); ++tile) {
    const auto staged = slots_.stash_of(tile, staging(tile));
    slots_.load_stash(*store_, tile, staged);
    const auto [device, host] = stash_of(tile);
    std::ranges::copy(staged.first(host.size()), host.begin());
    if (device.empty()) continue;
    streams_.upload->upload(device, staged.first(device.size_bytes()));
    streams_.upload->synchronize();
  }
}

void StateIo::keep_stash() {
  for (std::uint32_t tile = 0; tile < slots_.tiles().size(); ++tile) {
    const auto staged = slots_.stash_of(tile, staging(tile));
    std::ranges::fill(staged, std::byte{0});
    const auto [device, host] = stash_of(tile);
    std::ranges::copy(host, staged.begin());
    if (!device.empty()) {
      streams_.download->download(staged.first(device.size_bytes()), device);
      streams_.download->synchronize();
    }
    slots_.save_stash(*store_, tile, staged);
  }
}

void StateIo::undo(std::uint32_t first) {
  static_cast<void>(engine_.borrow_staging());  // some may hold what is undone
  for (std::uint32_t tile = 0; tile < slots_.tiles().size(); ++tile) {
    if (slots_.tiles()[tile].block < first) continue;
    store_->discard(StateSlots::state(tile));
    if (slots_.with_parameters()) store_->discard(slots_.parameters(tile));
  }
  for (std::uint32_t tile = 0; tile < slots_.tiles().size(); ++tile) {
    if (slots_.tiles()[tile].block >= first) restore_parameters(tile);
  }
}

void StateIo::restore_parameters(std::uint32_t tile) {
  if (slots_.with_parameters()) return slots_.load_parameters(*store_, tile, host_parameters(tile));
  slots_.load_state(*store_, tile, staging(tile));
  write_parameters(tile, staging(tile), host_parameters(tile).data());
}

void StateIo::adopt(const SavedState& source, const model::PartMap* part) {
  for (std::uint32_t tile = 0; tile < slots_.tiles().size(); ++tile) {
    const plan::Tile& t = slots_.tiles()[tile];
    const BlockIndex block{t.block};
    const cpu_adam::StateLayout& layout = slots_.layout(tile);
    if (part == nullptr) {
      source.read_slot(block, t.first, layout, staging(tile));
    } else {
      source.read_slot(*part, block, t.first, layout, staging(tile));
    }
    bring_home(tile, Stored::no);
  }
  upload_residents();
}

void StateIo::copy(nvme_swap::TileStore& target, const nvme_swap::CommitHeader& commit) {
  for (std::uint32_t tile = 0; tile < slots_.tiles().size(); ++tile) {
    const std::span<std::byte> slot = staging(tile);
    slots_.load(*store_, tile, slot);
    slots_.save(target, tile, slot);
    if (!slots_.with_stash()) continue;
    const auto stash = slots_.stash_of(tile, slot);
    slots_.load_stash(*store_, tile, stash);
    slots_.save_stash(target, tile, stash);
  }
  target.commit(commit).wait();
}

void StateIo::verify(nvme_swap::TileStore& target) {
  for (std::uint32_t tile = 0; tile < slots_.tiles().size(); ++tile) {
    slots_.load(target, tile, staging(tile));
    if (slots_.with_stash()) {
      slots_.load_stash(target, tile, slots_.stash_of(tile, staging(tile)));
    }
  }
}

void StateIo::bring_home(std::uint32_t tile, Stored stored) {
  const std::span<std::byte> slot = staging(tile);
  const std::span<std::byte> state = slots_.state_of(tile, slot);
  switch (placement_.blocks[slots_.tiles()[tile].block].state) {
    case Tier::nvme:
      if (stored == Stored::no) slots_.save(*store_, tile, slot);
      break;
    case Tier::host:
      std::ranges::copy(state, memory_.host({PoolKind::host_state, tile}).begin());
      break;
    case Tier::device: {
      streams_.upload->upload(memory_.device({PoolKind::device_state, tile}), state);
      streams_.upload->synchronize();
      // The state's own staging buffer, once uploaded, carries the parameters after it.
      const auto target = memory_.device({PoolKind::resident_parameters, tile});
      std::vector<std::byte> parameters(target.size());
      write_parameters(tile, slot, parameters.data());
      std::ranges::copy(parameters, slot.begin());
      streams_.upload->upload(target, slot.first(parameters.size()));
      streams_.upload->synchronize();
      return;
    }
  }
  write_parameters(tile, slot, host_parameters(tile).data());
}

void StateIo::write_parameters(std::uint32_t tile, std::span<std::byte> slot,
                               std::byte* target) const {
  const cpu_adam::StateLayout& layout = slots_.layout(tile);
  if (slots_.with_parameters()) {
    std::ranges::copy(slots_.parameters_of(tile, slot), target);
  } else {
    const auto* masters = reinterpret_cast<const float*>(slot.data() + layout.master);
    cpu_adam::cast_parameters(isa_, workload_.compute, masters, target, layout.count);
  }
}

void StateIo::upload_residents() {
  for (std::uint32_t block = 0; block < workload_.blocks.size(); ++block) {
    const plan::BlockCut& place = placement_.blocks[block];
    const bool uploads = place.resident() && place.state != Tier::device;
    if (!uploads || !workload_.blocks[block].has_parameters()) continue;
    if (workload_.shares_updates()) {
      gather_residents(block);
      continue;
    }
    streams_.upload->upload(memory_.device(slots_.tiles_of(PoolKind::resident_parameters, block)),
                            memory_.host(slots_.tiles_of(PoolKind::host_parameters, block)));
  }
  streams_.upload->synchronize();
}

/// Uploads pass through the buffer that a step's refresh takes.
void StateIo::gather_residents(std::uint32_t block) {
  const std::span<std::byte> source =
      memory_.host(slots_.tiles_of(PoolKind::host_parameters, block));
  const auto shard = memory_.device({PoolKind::parameter_shards}).subspan(0, source.size());
  const auto whole = memory_.device({PoolKind::whole_parameters, block});
  streams_.upload->upload(shard, source);
  streams_.upload->synchronize();
  comm::DeviceCommunicator* const gpus = ranks_.gpu(RankGroups::Group::replicas);
  if (gpus == nullptr) {
    ranks_.host(RankGroups::Group::replicas)
        ->all_gather({shard.address(), shard.size()}, {whole.address(), whole.size()})
        .wait();
    return;
  }
  gpus->all_gather({shard.address(), shard.size()}, {whole.address(), whole.size()},
                   streams_.net->native());
  gpus->wait();
}

void StateIo::read_masters(std::uint32_t block, std::span<float> masters) {
  const plan::Buffer tiles = slots_.tiles_of(PoolKind::host_state, block);
  for (std::uint32_t tile = tiles.first; tile < tiles.first + tiles.count; ++tile) {
    const plan::Tile& t = slots_.tiles()[tile];
    const std::span<std::byte> slot = staging(tile);
    const cpu_adam::StateLayout& layout = slots_.layout(tile);
    const std::byte* state = slot.data();
    const std::byte* parameters = slot.data() + layout.parameters;
    switch (placement_.blocks[block].state) {
      case Tier::nvme: slots_.load(*store_, tile, slot); break;
      case Tier::host:
        state = memory_.host({PoolKind::host_state, tile}).data();
        parameters = host_parameters(tile).data();
        break;
      case Tier::device:
        streams_.download->download(slots_.state_of(tile, slot),
                                    memory_.device({PoolKind::device_state, tile}));
        if (slots_.with_parameters()) {
          streams_.download->download(slots_.parameters_of(tile, slot),
                                      memory_.device({PoolKind::resident_parameters, tile}));
        }
        streams_.download->synchronize();
        break;
    }
    cpu_adam::unpack_state(layout, state, parameters,
                           {masters.subspan(t.first.value(), t.count.value()), {}, {}});
  }
}

}  // namespace spillway::engine
