#include "runtime/engine/device/model_runtime.hpp"

#include <utility>

#include "runtime/engine/device/compute_device.hpp"

namespace spillway::engine {
namespace {

ModelRuntime with_transformer(const model::ModelConfig& config, const config::TrainOptions& options,
                              std::unique_ptr<model::Ops> ops) {
  ModelRuntime runtime{.ops = std::move(ops), .transformer = nullptr};
  const model::BatchShape shape{.batch = options.micro_batch, .sequence = options.context};
  model::Ops& use = *runtime.ops;
  const auto [ranks, index, sequence] = options.tensor;
  if (ranks > 1) {
    runtime.transformer = std::make_unique<model::Transformer>(
        config, shape, options.compute, use,
        model::TensorPart{.index = index, .count = ranks, .sequence = sequence});
  } else {
    runtime.transformer = std::make_unique<model::Transformer>(config, shape, options.compute, use,
                                                               options.operator_tile);
  }
  return runtime;
}

}  // namespace

ModelRuntime make_model_runtime(const model::ModelConfig& config,
                                const config::TrainOptions& options,
                                model::cuda::GemmChoices products, Bytes score_gradients) {
  return with_transformer(config, options, make_ops(options, std::move(products), score_gradients));
}

ModelRuntime make_model_sizes(const model::ModelConfig& config, const config::TrainOptions& options,
                              Bytes score_gradients) {
  return with_transformer(config, options, make_sizing_ops(options, score_gradients));
}

}  // namespace spillway::engine
