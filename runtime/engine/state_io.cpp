#include "runtime/engine/state_io.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/error.hpp"

namespace spillway::engine {

using plan::kNoSlot;
using plan::Tier;

void StateIo::initialize(const model::ParameterSource& source) {
  std::vector<float> masters;
  for (std::uint32_t tile = 0; tile < homes_.tiles().size(); ++tile) {
    const plan::Tile& t = homes_.tiles()[tile];
    const std::span<std::byte> slot = homes_.staging(tile, 0);
    const cpu_adam::StateLayout& layout = homes_.slots().layout(tile);
    masters.resize(t.count.value());
    source.read(BlockIndex{t.block}, t.first, masters);
    cpu_adam::pack_state(layout, {masters, {}, {}}, slot.data(), slot.data() + layout.parameters);
    bring_home(tile, false);
  }
  upload_residents();
}

void StateIo::restore() {
  for (std::uint32_t tile = 0; tile < homes_.tiles().size(); ++tile) {
    homes_.slots().load(store_, tile, homes_.staging(tile, 0));
    bring_home(tile, true);
  }
  upload_residents();
}

nvme_swap::TileRead StateIo::adopt(const nvme_swap::CommittedTiles& source) {
  for (std::uint32_t tile = 0; tile < homes_.tiles().size(); ++tile) {
    const auto result = homes_.slots().load(source, tile, homes_.staging(tile, 0));
    if (result == nvme_swap::TileRead::moved_on) return result;
    bring_home(tile, false);
  }
  upload_residents();
  return nvme_swap::TileRead::whole;
}

void StateIo::copy_committed(nvme_swap::TileStore& target) {
  SPILLWAY_ASSERT(store_.committed().has_value());
  for (std::uint32_t tile = 0; tile < homes_.tiles().size(); ++tile) {
    const std::span<std::byte> slot = homes_.staging(tile, 0);
    homes_.slots().load(store_, tile, slot);
    homes_.slots().save(target, tile, slot);
  }
  target.commit(*store_.committed()).wait();
}

void StateIo::bring_home(std::uint32_t tile, bool already_on_disk) {
  const std::span<std::byte> slot = homes_.staging(tile, 0);
  const std::span<std::byte> state = homes_.slots().state_of(tile, slot);
  switch (placement_.blocks[homes_.tiles()[tile].block].state) {
    case Tier::nvme:
      if (!already_on_disk) homes_.slots().save(store_, tile, slot);
      break;
    case Tier::host: std::ranges::copy(state, homes_.host_state(tile).begin()); break;
    case Tier::device: {
      streams_.upload->upload(homes_.device_state(tile), state);
      streams_.upload->synchronize();
      // The state's own staging buffer, once uploaded, carries the parameters after it.
      const auto target = homes_.device_parameters_of_tile(tile);
      std::vector<std::byte> parameters(target.size());
      write_parameters(tile, slot, parameters.data());
      std::ranges::copy(parameters, slot.begin());
      streams_.upload->upload(target, slot.first(parameters.size()));
      streams_.upload->synchronize();
      return;
    }
  }
  write_parameters(tile, slot, homes_.host_parameters_of_tile(tile).data());
}

void StateIo::write_parameters(std::uint32_t tile, std::span<std::byte> slot,
                               std::byte* target) const {
  const cpu_adam::StateLayout& layout = homes_.slots().layout(tile);
  if (homes_.slots().with_parameters()) {
    std::ranges::copy(homes_.slots().parameters_of(tile, slot), target);
  } else {
    const auto* masters = reinterpret_cast<const float*>(slot.data() + layout.master);
    cpu_adam::cast_parameters(isa_, workload_.compute, masters, target, layout.count);
  }
}

void StateIo::upload_residents() {
  for (std::uint32_t block = 0; block < workload_.blocks.size(); ++block) {
    const plan::BlockPlacement& place = placement_.blocks[block];
    if (!place.resident || place.state == Tier::device) continue;
    streams_.upload->upload(homes_.parameters(block, kNoSlot), homes_.host_parameters(block));
  }
  streams_.upload->synchronize();
}

void StateIo::read_masters(std::uint32_t block, std::span<float> masters) {
  for (const std::uint32_t tile : homes_.tiles_of(block)) {
    const plan::Tile& t = homes_.tiles()[tile];
    const std::span<std::byte> slot = homes_.staging(tile, 0);
    const cpu_adam::StateLayout& layout = homes_.slots().layout(tile);
    const std::byte* state = slot.data();
    const std::byte* parameters = slot.data() + layout.parameters;
    switch (placement_.blocks[block].state) {
      case Tier::nvme: homes_.slots().load(store_, tile, slot); break;
      case Tier::host:
        state = homes_.host_state(tile).data();
        parameters = homes_.host_parameters_of_tile(tile).data();
        break;
      case Tier::device:
        streams_.download->download(homes_.slots().state_of(tile, slot), homes_.device_state(tile));
        if (homes_.slots().with_parameters()) {
          streams_.download->download(homes_.slots().parameters_of(tile, slot),
                                      homes_.device_parameters_of_tile(tile));
        }
        streams_.download->synchronize();
        break;
    }
    cpu_adam::unpack_state(layout, state, parameters,
                           {masters.subspan(t.first.value(), t.count.value()), {}, {}});
  }
}

}  // namespace spillway::engine
