#include "runtime/engine/step_trace.hpp"

#include <chrono>
#include <fstream>

namespace spillway::engine {
namespace {

/// Enough to see the steady state.
constexpr std::uint64_t kTracedSteps = 20;

std::chrono::nanoseconds nanoseconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

}  // namespace

StepTrace::StepTrace(std::size_t ops) : trace_(ops * kTracedSteps) {
  for (std::size_t lane = 0; lane < plan::kLaneCount; ++lane) {
    lanes_[lane] = trace_.add_lane(plan::name_of(static_cast<plan::Lane>(lane)));
  }
}

void StepTrace::record(const Executor& executor) {
  if (steps_ == kTracedSteps) return;
  ++steps_;
  const auto begin = trace_.now() - nanoseconds(executor.seconds());
  const auto& ops = executor.plan().ops;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const plan::OpTiming& timing = executor.timings()[i];
    if (timing.end <= 0) continue;
    trace_.record({.lane = lanes_[static_cast<std::size_t>(ops[i].lane)],
                   .name = plan::name_of(ops[i].kind),
                   .category = plan::name_of(ops[i].lane),
                   .start = begin + nanoseconds(timing.start),
                   .duration = nanoseconds(timing.end - timing.start),
                   .arguments = {.block = BlockIndex{ops[i].block},
                                 .tile = TileIndex{ops[i].tile},
                                 .bytes = ops[i].bytes}});
  }
}

void StepTrace::write(const std::filesystem::path& path) const {
  std::ofstream file(path);
  trace_.write_json(file);
}

}  // namespace spillway::engine
