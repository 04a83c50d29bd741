#include "runtime/engine/machine/update_bench.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "cpu_adam/calibration.hpp"
#include "cpu_adam/gradient_norm.hpp"
#include "offload/host/host_backend.hpp"
#include "runtime/base/elapsed.hpp"
#include "runtime/engine/machine/calibration_sizes.hpp"
#include "runtime/engine/machine/normal_numbers.hpp"

namespace spillway::engine {
namespace {

constexpr Bytes kNoLimit{std::numeric_limits<std::int64_t>::max()};

}  // namespace

UpdateBench::UpdateBench(const cpu_adam::Kernel& kernel, std::size_t count,
                         const cpu_adam::AdamOptions& options, cpu_adam::WorkerPool& workers)
    : kernel_(kernel),
      scalars_(cpu_adam::make_scalars(options, 1, 1.0)),
      workers_(workers),
      layout_(cpu_adam::make_layout(kernel.format, count)),
      backend_(
          offload::make_host_backend({.device_capacity = Bytes{}, .pinned_capacity = kNoLimit})),
      state_(*backend_, Bytes{layout_.bytes}),
      gradient_(*backend_, Bytes{count * size_of(kernel.gradient_dtype)}),
      parameters_(*backend_, Bytes{count * size_of(kernel.parameter_dtype)}) {
  // Pages never written are all one page, which stays in the cache. State begins as a run's.
  std::ranges::fill(state_.host(), std::byte{0});
  std::vector<std::byte> numbers(kRepeatedNumbers * size_of(kernel.gradient_dtype));
  write_normal_numbers(numbers, kernel.gradient_dtype);
  for (const offload::PinnedMemory* memory : {&gradient_, &parameters_}) {
    repeat(numbers, memory->host());
  }
}

double UpdateBench::pass(std::size_t prefetch_distance) {
  cpu_adam::UpdateRange range = cpu_adam::tile_range(
      layout_, state_.host().data(), state_.host().data(), gradient_.host().data(),
      parameters_.host().data(), parameters_.host().data());
  range.prefetch_distance = prefetch_distance;
  const auto begin = std::chrono::steady_clock::now();
  workers_
      .submit([&] {
        workers_.parallel_for(
            layout_.count, kLeafParameters, [&](std::size_t first, std::size_t last) {
              kernel_.update(scalars_, cpu_adam::slice(kernel_, range, first, last - first));
            });
      })
      .wait();
  return seconds_since(begin);
}

ElementCount prefetch_parameters(const cpu_adam::Kernel& kernel, Bytes room) {
  constexpr ElementCount kLeastCount{kPrefetchParameters.value() / 4};
  return update_parameters(kernel, kPrefetchParameters, kLeastCount, room);
}

std::size_t best_prefetch(const cpu_adam::Kernel& kernel, std::size_t threads, ElementCount count) {
  cpu_adam::WorkerPool workers({.threads = threads});
  UpdateBench bench(kernel, count.value(), {}, workers);
  bench.pass(0);  // the first one is slower
  return cpu_adam::calibrate_prefetch([&](std::size_t distance) { return bench.pass(distance); });
}

}  // namespace spillway::engine
