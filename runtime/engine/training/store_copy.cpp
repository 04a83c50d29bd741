#include "runtime/engine/training/store_copy.hpp"

namespace spillway::engine {

void StoreCopy::begin(const nvme_swap::StoreOptions& options) {
  const nvme_swap::StoreOptions& own = engine_.state_store().options;
  step_.reset();
  options_ = options;
  options_.engine = own.engine;
  options_.adapt = own.adapt;
  options_.wake = &engine_.wake();
  store_ = nvme_swap::TileStore::create(options_, engine_.slots().store_layout());
}

void StoreCopy::fill(const nvme_swap::CommitHeader& commit) {
  state_io_.copy(*store_, commit);
  close();
}

/// A write that the disk has lost is found here, while an older copy is still there.
void StoreCopy::close() {
  store_.reset();
  const auto written = nvme_swap::TileStore::open(options_);
  state_io_.verify(*written);
  step_ = written->committed()->step.value();
}

}  // namespace spillway::engine
