#include "runtime/engine/run/reader.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "runtime/base/error.hpp"

namespace spillway::engine {

namespace {

RunDirectory::Files read_files(const RunDirectory& run) {
  check(run.exists(), ErrorCode::invalid_argument,
        fmt::format("{} is not a run: it has no manifest.json", run.root().string()));
  return run.read();
}

}  // namespace

RunReader::RunReader(const std::filesystem::path& run) {
  const RunDirectory directory(run);
  RunDirectory::Files files = read_files(directory);
  manifest_ = std::move(files.manifest);
  config_ = std::move(files.config);
  layout_ = model::make_layout(config_.model, config_.options.operator_tile);
  nvme_swap::StoreOptions options;
  options.directories = directory.state_directories(manifest_);
  options.owner = manifest_.state_id;
  // Before its first commit a run is nothing that could be read; after it, its state must be there.
  check(manifest_.committed || nvme_swap::TileStore::has_commit(options),
        ErrorCode::invalid_argument, fmt::format("{} has no committed step yet", run.string()));
  SavedShape shape{.format = config_.options.state_format,
                   .tile_parameters = ElementCount{config_.options.tile_parameters}};
  for (const model::BlockLayout& block : layout_.blocks) {
    shape.blocks.push_back(block.padded_parameters);
  }
  saved_ = std::make_unique<SavedState>(shape, std::vector{options});
}

void RunReader::read(BlockIndex block, ElementCount first, std::span<float> target) const {
  saved_->read(block, first, {.master = target, .m = {}, .v = {}});
}

}  // namespace spillway::engine
