#include "runtime/engine/run_reader.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "offload/host/host_backend.hpp"
#include "runtime/base/error.hpp"
#include "runtime/plan/placement.hpp"

namespace spillway::engine {

RunReader::RunReader(const std::filesystem::path& run) {
  const RunDirectory directory(run);
  config_ = directory.read_config();
  layout_ = model::make_layout(config_.model);
  plan::Workload workload;
  for (const model::BlockLayout& block : layout_.blocks) {
    plan::BlockShape& shape = workload.blocks.emplace_back();
    shape.parameters = block.parameters;
    shape.padded_parameters = block.padded_parameters;
  }
  tiles_ = plan::make_tiles(workload, ElementCount{config_.options.tile_parameters});

  nvme_swap::StoreOptions options;
  options.directories = directory.read_manifest();
  check(nvme_swap::TileStore::has_commit(options), ErrorCode::invalid_argument,
        fmt::format("{} has no committed step yet", run.string()));
  store_ = nvme_swap::TileStore::open(options);
  state_ = decode(store_->committed()->payload);
  check(store_->layout().tiles.size() == tiles_.size(), ErrorCode::corrupt_data,
        fmt::format("{}: {} tiles on disk, {} by its config.json", run.string(),
                    store_->layout().tiles.size(), tiles_.size()));
  Bytes largest;
  for (const Bytes tile : store_->layout().tiles) largest = std::max(largest, tile);
  backend_ = offload::make_host_backend({.device_capacity = Bytes{}, .pinned_capacity = largest});
  staging_ = {*backend_, largest};
}

void RunReader::read(BlockIndex block, ElementCount first, std::span<float> target) const {
  const ElementCount last = first + ElementCount{target.size()};
  for (std::uint32_t tile = 0; tile < tiles_.size(); ++tile) {
    const plan::Tile& t = tiles_[tile];
    const ElementCount begin = std::max(first, t.first);
    const ElementCount end = std::min(last, t.first + t.count);
    if (t.block != block.value() || begin >= end) continue;
    const auto bytes = staging_.host().subspan(0, store_->layout().tiles[tile].value());
    store_->read(TileIndex{tile}, bytes).wait();
    store_->verify(TileIndex{tile}, bytes);
    const auto* masters = reinterpret_cast<const float*>(bytes.data());
    std::copy(masters + (begin - t.first).value(), masters + (end - t.first).value(),
              target.begin() + static_cast<std::ptrdiff_t>((begin - first).value()));
  }
}

}  // namespace spillway::engine
