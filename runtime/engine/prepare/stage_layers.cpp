#include "runtime/engine/prepare/stage_layers.hpp"

#include <utility>

#include "runtime/engine/prepare/place.hpp"
#include "runtime/plan/pipeline/stages.hpp"
#include "runtime/plan/search/choose.hpp"

namespace spillway::engine {
namespace {

plan::Pipeline pipeline_of(const config::TrainOptions& options, const plan::Workload& whole) {
  return {.schedule = options.pipeline.schedule,
          .stages = options.pipeline.stages,
          .rounds = whole.rounds,
          .chunks = options.pipeline.chunks,
          .tied_head = whole.tied_head,
          .layers = options.pipeline.parts};
}

}  // namespace

plan::Workload of_stage(plan::Workload whole, const config::TrainOptions& options,
                        std::uint32_t stage) {
  if (options.pipeline.stages == 1) return whole;
  return workload_of_stage(whole, pipeline_of(options, whole), stage);
}

plan::BalancedLayers balance_stages(const plan::Workload& whole,
                                    const config::TrainOptions& options,
                                    const plan::Budgets& budgets,
                                    const plan::MachineProfile* profile) {
  const plan::Pipeline pipeline = pipeline_of(options, whole);
  return plan::balance_layers({.model = whole,
                               .pipeline = pipeline,
                               .budgets = budgets,
                               .placement = placement_request(options),
                               .profile = profile});
}

bool balances_stages(const config::TrainOptions& options) {
  return options.pipeline.stages > 1 && options.pipeline.parts.empty() &&
         !has_stale_weights(options.pipeline.schedule);
}

}  // namespace spillway::engine
