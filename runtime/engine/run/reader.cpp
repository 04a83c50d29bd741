#include "runtime/engine/run/reader.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/engine/run/contents.hpp"

namespace spillway::engine {

namespace {

RunDirectory::Files read_files(const RunDirectory& run) {
  check_is_run(run);
  return run.read();
}

/// Before its first commit a run is nothing that could be read; after it, its state must be there.
nvme_swap::StoreOptions committed_store(const RunDirectory& run, const RunManifest& manifest) {
  check(has_committed(run, manifest), ErrorCode::invalid_argument,
        fmt::format("{} has no committed step yet", run.root().string()));
  return store_of(run, manifest);
}

/// Returns the store of each rank. How many there are is what the first one's commit says.
std::vector<nvme_swap::StoreOptions> stores_of(const RunDirectory& run,
                                               const RunManifest& manifest) {
  std::vector stores{committed_store(run, manifest)};
  const std::uint32_t ranks = saved_ranks(stores.front());
  for (std::uint32_t rank = 1; rank < ranks; ++rank) {
    const RunManifest part = run.read_rank(manifest, rank);
    stores.push_back(committed_store(RunDirectory(rank_directory(run.root(), rank)), part));
  }
  return stores;
}

}  // namespace

RunReader::RunReader(const std::filesystem::path& run) {
  const RunDirectory directory(run);
  RunDirectory::Files files = read_files(directory);
  manifest_ = std::move(files.manifest);
  config_ = std::move(files.config);
  layout_ = model::make_layout(config_.model, config_.options.operator_tile);
  SavedShape shape{.model = config_.model,
                   .format = config_.options.state_format,
                   .tile_parameters = ElementCount{config_.options.tile_parameters}};
  for (const model::BlockLayout& block : layout_.blocks) {
    shape.blocks.push_back(block.padded_parameters);
  }
  saved_ = std::make_unique<SavedState>(shape, stores_of(directory, manifest_));
}

void RunReader::read(BlockIndex block, ElementCount first, std::span<float> target) const {
  saved_->read(block, first, {.master = target, .m = {}, .v = {}});
}

}  // namespace spillway::engine
