// Inference: a trained model on one device, forward only, everything resident. For `spillway eval`
// and `spillway generate`. Control thread only; every call blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "offload/memory.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/step/step_engine.hpp"
#include "runtime/engine/training/evaluation.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::engine {

/// What the model is run for: the loss of windows, or the logits of one window.
enum class InferenceUse : std::uint8_t { evaluation, generation };

struct InferenceOptions {
  InferenceUse use = InferenceUse::evaluation;
  DType compute = DType::fp32;
  std::uint32_t batch = 1;    ///< windows at once; generation has one
  std::uint32_t context = 0;  ///< tokens a window
  std::uint32_t compute_threads = 0;
  std::optional<config::DeviceKind> device = std::nullopt;  ///< absent: as for training
  DeviceRecord trained_on = {};                       ///< algorithms of a run's products: the same
  std::optional<Bytes> device_memory = std::nullopt;  ///< budgets, as for training
  std::optional<Bytes> host_memory = std::nullopt;
  Bytes source_bytes = {};  ///< of host memory, that reading the parameters takes
};

class Inference {
 public:
  /// Loads the model: parameters are the masters of `source`, rounded to the compute dtype as
  /// training rounds them. Throws `Error{does_not_fit}` where the budgets, or the memory that is
  /// left, are too small.
  Inference(const model::ModelConfig& config, const InferenceOptions& options,
            const model::ParameterSource& source);
  ~Inference();

  /// Returns the mean loss over all whole windows of `tokens`, in file order.
  [[nodiscard]] Evaluation evaluate(const data::TokenFile& tokens);
  /// Returns fp32 logits [vocab] of the token after `tokens`, of which the last `context` count.
  [[nodiscard]] std::span<const float> next_logits(std::span<const std::int32_t> tokens);

 private:
  void load(const model::ParameterSource& source);

  ModelRuntime model_;
  std::unique_ptr<StepEngine> engine_;
  std::unique_ptr<Executor> executor_;
  offload::PinnedMemory logits_;  ///< of one position
};

}  // namespace spillway::engine
