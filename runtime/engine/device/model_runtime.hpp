// A model with the operators of a device: what a run computes with, and what a plan takes its sizes
// from. Control thread only.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/config/train_options.hpp"
#include "runtime/model/cuda/gemm/gemm_choices.hpp"
#include "runtime/model/cuda/workspace.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/ops.hpp"
#include "runtime/model/transformer.hpp"

namespace spillway::engine {

struct ModelRuntime {
  std::unique_ptr<model::Ops> ops;
  std::unique_ptr<model::Transformer> transformer;
};

/// What a rank's model has beside the options of the run.
struct ModelSetup {
  model::cuda::GemmChoices products{};                   ///< as for `make_ops`
  Bytes score_gradients = model::cuda::kScoreGradients;  ///< likewise
  std::uint32_t tensor_index = 0;                        ///< of the rank, in its tensor group
};

/// Returns a model that is ready to run and to be planned. Throws `Error{not_supported}` where the
/// options' device is not usable here.
[[nodiscard]] ModelRuntime make_model_runtime(const model::ModelConfig& config,
                                              const config::TrainOptions& options,
                                              ModelSetup setup = {});
/// Returns a model to plan with, not to run: it works for a device that this machine lacks.
[[nodiscard]] ModelRuntime make_model_sizes(const model::ModelConfig& config,
                                            const config::TrainOptions& options,
                                            const ModelSetup& setup = {});

}  // namespace spillway::engine
