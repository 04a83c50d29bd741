#include "runtime/engine/prepare/score_gradients.hpp"

#include "runtime/engine/device/model_runtime.hpp"

namespace spillway::engine {
namespace {

/// More than any GPU has.
constexpr Bytes kMostBytes{std::uint64_t{1} << 40};

}  // namespace

Bytes spare_score_gradients(const model::ModelConfig& config, const Planned& planned) {
  const config::TrainOptions& options = planned.options;
  const Bytes usual = model::cuda::kScoreGradients;
  if (options.device != config::DeviceKind::cuda || !options.deterministic) return usual;
  const auto workspace = [&](Bytes bound) {
    const ModelSetup wide{.score_gradients = bound, .tensor_index = planned.place.tensor_index()};
    return make_model_sizes(config, options, wide).transformer->workspace_bytes();
  };
  const Bytes others =
      plan::total(planned.memory(), plan::Tier::device) - planned.workload.workspace_bytes;
  Bytes bound = usual;
  Bytes taken = planned.workload.workspace_bytes;
  for (Bytes wider = usual * 2U; wider <= kMostBytes; wider = wider * 2U) {
    const Bytes wanted = workspace(wider);
    if (others + wanted > planned.budgets.device) break;
    if (wanted > taken) bound = wider;
    taken = wanted;
  }
  return bound;
}

}  // namespace spillway::engine
