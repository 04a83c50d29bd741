// Timing of gemm algorithms: for profiles, never in a run.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "runtime/base/cuda/check.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "runtime/model/cuda/gemm/gemm.hpp"

namespace spillway::model::cuda {
namespace {

constexpr int kRuns = 5;    ///< in a row, timed together
constexpr int kRounds = 3;  ///< of them the fastest counts

using Event = std::unique_ptr<CUevent_st, decltype(&cudaEventDestroy)>;

Event make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event), "making an event");
  return {event, &cudaEventDestroy};
}

}  // namespace

std::vector<GemmTiming> Multiplier::measure(const GemmShape& shape, const GemmArguments& arguments,
                                            int count, cudaStream_t stream) {
  GemmDescriptors descriptors(*library_, shape, options_.math);
  auto proposals = descriptors.propose(handle_, Alignment::sixteen, count);
  // The library says that a proposal may still not run; the first run of one also loads its kernel.
  std::erase_if(proposals, [&](const auto& proposal) {
    if (!descriptors.accepts(handle_, Alignment::sixteen, proposal.algo)) return true;
    try {
      descriptors.run(handle_, proposal.algo, arguments, stream);
      return false;
    } catch (const Error& error) {
      log_warning("an algorithm of {} is left out: {}", name_of(shape), error.what());
      return true;
    }
  });
  const Event first = make_event();
  const Event last = make_event();
  const auto milliseconds = [&](const cublasLtMatmulAlgo_t& algorithm) {
    check_cuda(cudaEventRecord(first.get(), stream), "recording an event");
    for (int i = 0; i < kRuns; ++i) descriptors.run(handle_, algorithm, arguments, stream);
    check_cuda(cudaEventRecord(last.get(), stream), "recording an event");
    check_cuda(cudaEventSynchronize(last.get()), "timing a gemm");
    float sum = 0;
    check_cuda(cudaEventElapsedTime(&sum, first.get(), last.get()), "timing a gemm");
    return static_cast<double>(sum) / kRuns;
  };
  std::vector<GemmTiming> timings(proposals.size());
  for (std::size_t i = 0; i < proposals.size(); ++i) {
    std::memcpy(timings[i].algorithm.data(), &proposals[i].algo, sizeof(GemmAlgorithm));
    timings[i].milliseconds = std::numeric_limits<double>::infinity();
  }
  // All are timed round by round, so that a clock that rises or falls does so for all.
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < proposals.size(); ++i) {
      double& least = timings[i].milliseconds;
      least = std::min(least, milliseconds(proposals[i].algo));
    }
  }
  return timings;
}

}  // namespace spillway::model::cuda
