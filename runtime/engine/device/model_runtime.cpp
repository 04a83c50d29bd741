#include "runtime/engine/device/model_runtime.hpp"

#include <utility>

#include "runtime/engine/device/compute_device.hpp"

namespace spillway::engine {
namespace {

ModelRuntime with_transformer(const model::ModelConfig& config, const config::TrainOptions& options,
                              std::uint32_t tensor_index, std::unique_ptr<model::Ops> ops) {
  ModelRuntime runtime{.ops = std::move(ops), .transformer = nullptr};
  const model::BatchShape shape{.batch = options.micro_batch, .sequence = options.context};
  model::Ops& use = *runtime.ops;
  if (options.tensor.ranks > 1) {
    runtime.transformer = std::make_unique<model::Transformer>(
        config, shape, options.compute, use,
        model::TensorPart{.index = tensor_index,
                          .count = options.tensor.ranks,
                          .sequence = options.tensor.sequence});
  } else {
    runtime.transformer = std::make_unique<model::Transformer>(config, shape, options.compute, use,
                                                               options.operator_tile);
  }
  return runtime;
}

}  // namespace

ModelRuntime make_model_runtime(const model::ModelConfig& config,
                                const config::TrainOptions& options, ModelSetup setup) {
  return with_transformer(config, options, setup.tensor_index,
                          make_ops(options, std::move(setup.products), setup.score_gradients));
}

ModelRuntime make_model_sizes(const model::ModelConfig& config, const config::TrainOptions& options,
                              const ModelSetup& setup) {
  return with_transformer(config, options, setup.tensor_index,
                          make_sizing_ops(options, setup.score_gradients));
}

}  // namespace spillway::engine
