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
    workload.blocks.push_back({.name = block.name,
                               .parameters = block.parameters,
                               .padded_parameters = block.padded_parameters});
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

void RunReader::read_masters(std::uint32_t block, std::span<float> masters) {
  for (std::uint32_t tile = 0; tile < tiles_.size(); ++tile) {
    const plan::Tile& t = tiles_[tile];
    if (t.block != block || t.first.value() >= masters.size()) continue;
    const auto bytes =
        staging_.host().subspan(0, store_->layout().tiles[tile].value());
    store_->read(TileIndex{tile}, bytes).wait();
    store_->verify(TileIndex{tile}, bytes);
    const std::size_t count =
        std::min<std::size_t>(t.count.value(), masters.size() - t.first.value());
    std::copy_n(reinterpret_cast<const float*>(bytes.data()), count,
                masters.data() + t.first.value());
  }
}

}  // namespace spillway::engine
