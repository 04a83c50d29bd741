// Timing of matrix product algorithms: for benchmarks and profiles, never in a run.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "runtime/model/cuda/cuda_check.hpp"
#include "runtime/model/cuda/matmul.hpp"

namespace spillway::model::cuda {
namespace {

constexpr int kRuns = 10;

using Event = std::unique_ptr<CUevent_st, decltype(&cudaEventDestroy)>;

Event make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event), "making an event");
  return {event, &cudaEventDestroy};
}

}  // namespace

std::vector<MatmulTiming> Multiplier::measure(const MatmulShape& shape,
                                              const MatmulArguments& arguments, int count,
                                              cudaStream_t stream) {
  MatmulDescriptors descriptors(*library_, shape, options_.math);
  const Event first = make_event();
  const Event last = make_event();
  std::vector<MatmulTiming> timings;
  for (const auto& proposal : descriptors.propose(handle_, Alignment::sixteen, count)) {
    // The first run loads the kernel.
    descriptors.run(handle_, proposal.algo, arguments, stream);
    check_cuda(cudaEventRecord(first.get(), stream), "recording an event");
    for (int i = 0; i < kRuns; ++i) descriptors.run(handle_, proposal.algo, arguments, stream);
    check_cuda(cudaEventRecord(last.get(), stream), "recording an event");
    check_cuda(cudaEventSynchronize(last.get()), "timing a product");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, first.get(), last.get()), "timing a product");
    MatmulTiming timing{.key = key(shape, Alignment::sixteen),
                        .algorithm = {},
                        .milliseconds = static_cast<double>(milliseconds) / kRuns};
    std::memcpy(timing.algorithm.data(), &proposal.algo, sizeof(timing.algorithm));
    timings.push_back(std::move(timing));
  }
  std::stable_sort(
      timings.begin(), timings.end(),
      [](const MatmulTiming& a, const MatmulTiming& b) { return a.milliseconds < b.milliseconds; });
  return timings;
}

}  // namespace spillway::model::cuda
