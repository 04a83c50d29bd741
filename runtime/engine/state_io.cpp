#include "runtime/engine/state_io.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/error.hpp"

namespace spillway::engine {

using plan::kNoSlot;
using plan::Tier;

void StateIo::initialize(const model::ParameterSource& source) {
  for (std::uint32_t tile = 0; tile < homes_.tiles().size(); ++tile) {
    const plan::Tile& t = homes_.tiles()[tile];
    const std::span<std::byte> bytes = homes_.staging(tile, 0);
    std::fill(bytes.begin(), bytes.end(), std::byte{});
    source.read(BlockIndex{t.block}, t.first,
                {homes_.split(tile, bytes.data()).master, t.count.value()});
    bring_home(tile, false);
  }
  upload_residents();
}

void StateIo::restore() {
  for (std::uint32_t tile = 0; tile < homes_.tiles().size(); ++tile) {
    load(store_, tile);
    bring_home(tile, true);
  }
  upload_residents();
}

void StateIo::adopt(nvme_swap::TileStore& source) {
  for (std::uint32_t tile = 0; tile < homes_.tiles().size(); ++tile) {
    load(source, tile);
    bring_home(tile, false);
  }
  upload_residents();
}

void StateIo::copy_committed(nvme_swap::TileStore& target) {
  SPILLWAY_ASSERT(store_.committed().has_value());
  for (std::uint32_t tile = 0; tile < homes_.tiles().size(); ++tile) {
    const std::span<std::byte> bytes = load(store_, tile);
    target.write(TileIndex{tile}, bytes, nvme_swap::checksum_of(bytes)).wait();
  }
  target.commit(*store_.committed()).wait();
}

std::span<std::byte> StateIo::load(nvme_swap::TileStore& source, std::uint32_t tile) {
  const std::span<std::byte> bytes = homes_.staging(tile, 0);
  source.read(TileIndex{tile}, bytes).wait();
  source.verify(TileIndex{tile}, bytes);
  return bytes;
}

void StateIo::bring_home(std::uint32_t tile, bool already_on_disk) {
  const plan::Tile& t = homes_.tiles()[tile];
  const std::span<std::byte> bytes = homes_.staging(tile, 0);
  const float* masters = homes_.split(tile, bytes.data()).master;
  const std::size_t parameter_bytes = t.count.value() * size_of(workload_.compute);
  const std::uint64_t parameters_at = t.first.value() * size_of(workload_.compute);
  switch (placement_.blocks[t.block].state) {
    case Tier::nvme:
      if (!already_on_disk) {
        store_.write(TileIndex{tile}, bytes, nvme_swap::checksum_of(bytes)).wait();
      }
      break;
    case Tier::host: std::memcpy(homes_.host_state(tile).data(), bytes.data(), bytes.size()); break;
    case Tier::device: {
      // The state's own staging buffer, once uploaded, carries the parameters after it.
      streams_.upload->upload(homes_.device_state(tile), bytes);
      streams_.upload->synchronize();
      std::vector<std::byte> rounded(parameter_bytes);
      cpu_adam::cast_parameters(isa_, workload_.compute, masters, rounded.data(), t.count.value());
      std::memcpy(bytes.data(), rounded.data(), rounded.size());
      streams_.upload->upload(
          homes_.parameters(t.block, kNoSlot).subspan(parameters_at, parameter_bytes),
          bytes.first(parameter_bytes));
      streams_.upload->synchronize();
      return;
    }
  }
  cpu_adam::cast_parameters(isa_, workload_.compute, masters,
                            homes_.host_parameters(t.block).data() + parameters_at,
                            t.count.value());
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
    std::span<std::byte> bytes = homes_.staging(tile, 0);
    switch (placement_.blocks[block].state) {
      case Tier::nvme: load(store_, tile); break;
      case Tier::host: bytes = homes_.host_state(tile); break;
      case Tier::device:
        streams_.download->download(bytes, homes_.device_state(tile));
        streams_.download->synchronize();
        break;
    }
    std::copy_n(homes_.split(tile, bytes.data()).master, t.count.value(),
                masters.data() + t.first.value());
  }
}

}  // namespace spillway::engine
