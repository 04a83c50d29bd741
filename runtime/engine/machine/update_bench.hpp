// UpdateBench: an update pass over memory of its own, to measure what one takes.
#pragma once

#include <cstddef>
#include <memory>

#include "cpu_adam/adam.hpp"
#include "cpu_adam/worker_pool.hpp"
#include "offload/memory.hpp"

namespace spillway::engine {

class UpdateBench {
 public:
  /// Allocates arrays for `count` parameters, in memory like that of a run. `workers` outlives
  /// this.
  UpdateBench(const cpu_adam::Kernel& kernel, std::size_t count,
              const cpu_adam::AdamOptions& options, cpu_adam::WorkerPool& workers);

  /// Runs one pass with this prefetch distance, and returns its seconds.
  double pass(std::size_t prefetch_distance);

 private:
  const cpu_adam::Kernel& kernel_;
  cpu_adam::UpdateScalars scalars_;
  cpu_adam::WorkerPool& workers_;
  cpu_adam::StateLayout layout_;
  std::unique_ptr<offload::DeviceBackend> backend_;
  offload::PinnedMemory state_, gradient_, parameters_;
};

/// Number of parameters over which a prefetch distance is measured: more state than caches hold.
inline constexpr ElementCount kPrefetchParameters{std::uint64_t{8} << 20};

/// Returns kPrefetchParameters, or fewer where `room` does not suffice. Throws
/// `Error{does_not_fit}` if it does not suffice for a quarter of them.
[[nodiscard]] ElementCount prefetch_parameters(const cpu_adam::Kernel& kernel, Bytes room);

/// Returns the software prefetch distance that suits a kernel here, by passes over `count`
/// parameters: about a tenth of a second.
[[nodiscard]] std::size_t best_prefetch(const cpu_adam::Kernel& kernel, std::size_t threads,
                                        ElementCount count = kPrefetchParameters);

}  // namespace spillway::engine
