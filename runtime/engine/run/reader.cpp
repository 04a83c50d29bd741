#include "runtime/engine/run/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "offload/host/host_backend.hpp"
#include "runtime/base/error.hpp"
#include "runtime/plan/placement/placement.hpp"

namespace spillway::engine {

namespace {

RunDirectory::Files read_files(const RunDirectory& run) {
  check(run.exists(), ErrorCode::invalid_argument,
        fmt::format("{} is not a run: it has no manifest.json", run.root().string()));
  return run.read();
}

}  // namespace

Overtaken::Overtaken(const std::filesystem::path& run)
    : Error(ErrorCode::busy,
            fmt::format("{} is trained by a process that commits steps faster than they can be "
                        "read; interrupt it first, or read a checkpoint that it keeps "
                        "(spillway.save_every)",
                        run.string())) {}

RunReader::RunReader(const std::filesystem::path& run) : root_(run) {
  const RunDirectory directory(run);
  RunDirectory::Files files = read_files(directory);
  manifest_ = std::move(files.manifest);
  config_ = std::move(files.config);
  layout_ = model::make_layout(config_.model, config_.options.operator_tile);
  plan::Workload workload;
  for (const model::BlockLayout& block : layout_.blocks) {
    plan::BlockShape& shape = workload.blocks.emplace_back();
    shape.parameters = block.parameters;
    shape.padded_parameters = block.padded_parameters;
  }
  slots_ = {config_.options.state_format,
            plan::make_tiles(workload, ElementCount{config_.options.tile_parameters})};

  nvme_swap::StoreOptions options;
  options.directories = directory.state_directories(manifest_);
  options.owner = manifest_.state_id;
  // Before its first commit a run is nothing that could be read; after it, its state must be there.
  check(manifest_.committed || nvme_swap::TileStore::has_commit(options),
        ErrorCode::invalid_argument, fmt::format("{} has no committed step yet", run.string()));
  tiles_ = std::make_unique<nvme_swap::CommittedTiles>(options);
  state_ = decode(tiles_->commit().payload);
  check(tiles_->layout().tiles == slots_.store_layout().tiles, ErrorCode::corrupt_data,
        fmt::format("{}: its state is not of the model and format that its config.json says",
                    run.string()));
  Bytes largest, masters;
  for (std::uint32_t tile = 0; tile < slots_.tiles().size(); ++tile) {
    largest = std::max(largest, Bytes{slots_.layout(tile).disk_bytes});
    masters = std::max(masters, Bytes{slots_.tiles()[tile].count.value() * sizeof(float)});
  }
  reading_bytes_ = largest + masters;
  backend_ = offload::make_host_backend({.device_capacity = Bytes{}, .pinned_capacity = largest});
  staging_ = {*backend_, largest};
}

void RunReader::read(BlockIndex block, ElementCount first, std::span<float> target) const {
  const ElementCount last = first + ElementCount{target.size()};
  std::vector<float> masters;
  for (std::uint32_t tile = 0; tile < slots_.tiles().size(); ++tile) {
    const plan::Tile& t = slots_.tiles()[tile];
    const ElementCount begin = std::max(first, t.first);
    const ElementCount end = std::min(last, t.first + t.count);
    if (t.block != block.value() || begin >= end) continue;
    const cpu_adam::StateLayout& layout = slots_.layout(tile);
    const auto slot = staging_.host().first(layout.disk_bytes);
    if (slots_.load(*tiles_, tile, slot) == nvme_swap::TileRead::moved_on) throw Overtaken(root_);
    masters.resize(t.count.value());
    cpu_adam::unpack_state(layout, slot.data(), slot.data() + layout.parameters, {masters, {}, {}});
    std::copy(masters.begin() + static_cast<std::ptrdiff_t>((begin - t.first).value()),
              masters.begin() + static_cast<std::ptrdiff_t>((end - t.first).value()),
              target.begin() + static_cast<std::ptrdiff_t>((begin - first).value()));
  }
}

}  // namespace spillway::engine
