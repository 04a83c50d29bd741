#include "runtime/engine/prepare/resolve.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"
#include "runtime/base/topology.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/prepare/workload.hpp"

namespace spillway::engine {
namespace {

/// Beyond so many no step is worth planning.
constexpr std::uint32_t kMostLayers = 16'384;

/// A step passes through every layer forward and backward with each of its micro-batches.
void check_step_size(const config::TrainOptions& options, const model::ModelConfig& config) {
  check(config.layers <= kMostLayers, ErrorCode::invalid_argument,
        fmt::format("the model has {} layers, more than the {} that can be planned; look at "
                    "num_hidden_layers or --layers",
                    config.layers, kMostLayers));
  const std::uint64_t most = most_micro_batches(config);
  check(options.gradient_accumulation_steps <= most, ErrorCode::invalid_argument,
        fmt::format("gradient_accumulation_steps {} is more than the {} that can be planned for {} "
                    "layers; use a larger train_micro_batch_size_per_gpu",
                    options.gradient_accumulation_steps, most, config.layers));
}

}  // namespace

void resolve(config::TrainOptions& options, const model::ModelConfig& config) {
  if (!options.device) options.device = usable_device();
  if (!options.device_generation && *options.device == config::DeviceKind::cuda) {
    options.device_generation = generation_of(options.device_index);
  }
  if (options.context == 0) options.context = config.max_context;
  model::check_context(config, options.context);
  const auto cores = static_cast<std::uint32_t>(read_topology().cores.size());
  if (options.threads == 0) options.threads = cores;
  if (options.compute_threads == 0) options.compute_threads = cores;
  validate(options);
  check_step_size(options, config);
}

plan::Grid grid_of(const config::TrainOptions& options, std::uint32_t ranks) {
  const std::uint32_t stages = options.pipeline.stages;
  const std::uint32_t tensor = options.tensor.ranks;
  const std::uint64_t least = std::uint64_t{stages} * tensor;
  const std::string_view what = tensor == 1   ? "pipeline.stages is"
                                : stages == 1 ? "tensor_parallel.autotp_size is"
                                              : "pipeline.stages x tensor_parallel.autotp_size is";
  check(ranks % least == 0, ErrorCode::invalid_argument,
        fmt::format("{0} {1}, which does not divide the number of ranks, {2}; start the program on "
                    "{1}, {3}, ... ranks, as with mpirun -n {1}",
                    what, least, ranks, 2 * least));
  return {
      .stages = stages, .replicas = static_cast<std::uint32_t>(ranks / least), .tensor = tensor};
}

plan::Replicas replicas_of(const config::TrainOptions& options, std::uint32_t count) {
  const auto sharding = options.zero_stage >= 3   ? plan::Sharding::parameters
                        : options.zero_stage >= 1 ? plan::Sharding::state
                                                  : plan::Sharding::none;
  plan::Replicas replicas{.count = count, .sharding = sharding, .sums = options.sum_order};
  if (count == 1 || sharding != plan::Sharding::parameters) return replicas;
  replicas.secondary = options.secondary_ranks;
  check(count % replicas.secondary == 0, ErrorCode::invalid_argument,
        fmt::format("zero_optimization.zero_hpz_partition_size is {}, which does not divide the {} "
                    "ranks of the job; set the number of ranks on each machine",
                    replicas.secondary, count));
  return replicas;
}

}  // namespace spillway::engine
