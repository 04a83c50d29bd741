#include "runtime/engine/prepare/score_gradients.hpp"

#include "runtime/engine/device/model_runtime.hpp"

namespace spillway::engine {
namespace {

/// More than any GPU has.
constexpr Bytes kMostBytes{std::uint64_t{1} << 40};

}  // namespace

Bytes spare_score_gradients(const model::ModelConfig& config, const config::TrainOptions& options,
                            const plan::Workload& workload, const plan::Placement& placement,
                            Bytes device) {
  const Bytes usual = model::cuda::kScoreGradients;
  if (options.device != config::DeviceKind::cuda || !options.deterministic) return usual;
  const auto workspace = [&](Bytes bound) {
    return make_model_sizes(config, options, bound).transformer->workspace_bytes();
  };
  const Bytes others = plan::total(plan::memory_items(workload, placement), plan::Tier::device) -
                       workload.workspace_bytes;
  Bytes bound = usual;
  Bytes taken = workload.workspace_bytes;
  for (Bytes wider = usual * 2U; wider <= kMostBytes; wider = wider * 2U) {
    const Bytes wanted = workspace(wider);
    if (others + wanted > device) break;
    if (wanted > taken) bound = wider;
    taken = wanted;
  }
  return bound;
}

}  // namespace spillway::engine
