#include "runtime/engine/embedded/checkpoint/checkpoints.hpp"

#include <cstdint>
#include <vector>

#include "runtime/engine/embedded/checkpoint/checkpoint_folder.hpp"

namespace spillway::engine {
namespace {

constexpr const char* kStoreName = "state";

nvme_swap::StoreOptions store_in(const std::filesystem::path& directory) {
  nvme_swap::StoreOptions options;
  options.directories = {directory};
  options.name = kStoreName;
  options.slots = 1;
  return options;
}

}  // namespace

void Checkpoints::save(const std::filesystem::path& directory) {
  state_.parameters.check_whole();
  NewCheckpoint checkpoint(
      directory, describe_checkpoint(directory, options_, layout_, state_.updates.counts()));
  state_.parameters.settle();
  state_.cycle.copy_now(store_in(checkpoint.path()));
  checkpoint.complete();
}

void Checkpoints::load(const std::filesystem::path& directory) {
  const std::vector<std::uint64_t> counts = check_checkpoint(directory, options_, layout_);
  const SavedState saved(shape(), {store_in(directory)});
  saved.verify();
  state_.parameters.begin_replacement();
  state_.cycle.take(saved);
  state_.updates.set_counts(state_.cycle.state().updates);
  for (std::uint32_t i = 0; i < counts.size(); ++i) state_.updates.set_count(i, counts[i]);
  state_.parameters.end_replacement();
}

SavedShape Checkpoints::shape() const {
  const plan::Placement& placement = state_.engine.placement();
  SavedShape shape{.format = placement.format, .tile_parameters = placement.tile_parameters};
  for (const plan::BlockShape& block : layout_.workload.blocks) {
    shape.blocks.push_back(block.padded_parameters);
  }
  return shape;
}

}  // namespace spillway::engine
