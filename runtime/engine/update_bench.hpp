// UpdateBench: an update pass over memory of its own, for whoever wants to know what one takes.
#pragma once

#include <cstddef>
#include <memory>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/worker_pool.hpp"
#include "offload/memory.hpp"

namespace spillway::engine {

class UpdateBench {
 public:
  /// Arrays for `count` parameters, in memory like that of a run. `workers` outlives this.
  UpdateBench(const cpu_adam::Kernel& kernel, std::size_t count,
              const cpu_adam::AdamOptions& options, cpu_adam::WorkerPool& workers);

  /// Seconds of one pass with this prefetch distance.
  double pass(std::size_t prefetch_distance);

 private:
  const cpu_adam::Kernel& kernel_;
  cpu_adam::UpdateScalars scalars_;
  cpu_adam::WorkerPool& workers_;
  cpu_adam::StateLayout layout_;
  std::unique_ptr<offload::DeviceBackend> backend_;
  offload::PinnedMemory state_, gradient_, parameters_;
};

/// The software prefetch distance that suits a kernel here, by passes over more state than caches
/// hold: about a tenth of a second.
[[nodiscard]] std::size_t best_prefetch(const cpu_adam::Kernel& kernel, std::size_t threads);

}  // namespace spillway::engine
