#include "runtime/engine/prepare/start_values.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/base/error.hpp"
#include "runtime/model/hf/checkpoint.hpp"
#include "runtime/model/initialize.hpp"
#include "runtime/plan/placement/placement.hpp"

namespace spillway::engine {
namespace {

/// Commits of state that lives in memory may keep the disk busy for this share of the time: they
/// are written behind a step, but wear the drive.
constexpr double kCommitShare = 0.05;

}  // namespace

model::ModelConfig model_of(const TrainRequest& request, const RunDirectory& run) {
  if (request.model) return *request.model;
  if (request.from) return model_config_in(*request.from);
  check(request.resume && run.exists(), ErrorCode::invalid_argument,
        "no model: give --model CONFIG_JSON for a new one or --from DIR for a trained one");
  return run.read_config().model;
}

std::uint64_t steps_of(const config::TrainOptions& options, const data::Sampler& sampler,
                       std::uint32_t ranks) {
  if (options.steps > 0) return options.steps;
  const std::uint64_t windows =
      std::uint64_t{options.micro_batch} * options.gradient_accumulation_steps * ranks;
  return std::max<std::uint64_t>(sampler.windows() / windows, 1);
}

std::uint64_t planned_commit_every(const plan::Workload& workload, const plan::Placement& placement,
                                   const plan::MachineProfile& profile, double step_seconds) {
  double bytes = 0;
  for (std::uint32_t b = 0; b < workload.blocks.size(); ++b) {
    if (placement.blocks[b].state == plan::Tier::nvme) continue;
    const Bytes state = plan::slot_bytes(placement.format, workload.shard_elements(b));
    bytes += static_cast<double>(state.value());
  }
  if (bytes == 0) return 1;
  const double commit_seconds = bytes / profile.nvme_write;
  return static_cast<std::uint64_t>(
      std::ceil(std::max(1.0, commit_seconds / (kCommitShare * step_seconds))));
}

std::unique_ptr<model::ParameterSource> initial_parameters(const TrainRequest& request,
                                                           const model::ModelConfig& config,
                                                           const model::ModelLayout& layout,
                                                           std::uint64_t seed) {
  if (request.from) {
    return std::make_unique<model::CheckpointReader>(*request.from, config, layout);
  }
  return std::make_unique<model::RandomInitializer>(config, layout, seed);
}

}  // namespace spillway::engine
