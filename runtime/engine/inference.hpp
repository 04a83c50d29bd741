// Inference: a trained model on one device, forward only, everything resident. For `spillway eval`
// and `spillway generate`. Control thread only; every call blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "offload/memory.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/engine/machine/budgets.hpp"
#include "runtime/engine/machine/compute_device.hpp"
#include "runtime/engine/prepare/model_runtime.hpp"
#include "runtime/engine/prepare/planning.hpp"
#include "runtime/engine/step/model_constants.hpp"
#include "runtime/engine/trainer.hpp"
#include "runtime/model/parameter_source.hpp"

namespace spillway::engine {

struct InferenceOptions {
  DType compute = DType::fp32;
  std::uint32_t batch = 1;    ///< windows at once
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
  /// Throws `Error{does_not_fit}` where the budgets, or the memory that is left, are too small.
  /// Parameters are the masters of `source`, rounded to the compute dtype as training rounds them.
  Inference(const model::ModelConfig& config, const InferenceOptions& options,
            const model::ParameterSource& source);
  ~Inference();

  /// Mean loss over all whole windows of `tokens`, in file order.
  [[nodiscard]] Evaluation evaluate(const data::TokenFile& tokens);
  /// fp32 logits [vocab] of the token after `tokens`, of which the last `context` count.
  [[nodiscard]] std::span<const float> next_logits(std::span<const std::int32_t> tokens);

 private:
  [[nodiscard]] FixedNeeds needs() const;
  [[nodiscard]] Bytes token_bytes() const;
  [[nodiscard]] Bytes row_bytes() const;
  void load(const model::ParameterSource& source);
  void forward();
  [[nodiscard]] offload::DeviceSpan<std::byte> parameters(std::uint32_t block) const;

  model::ModelConfig config_;
  InferenceOptions options_;
  ModelRuntime model_;
  std::unique_ptr<offload::DeviceBackend> backend_;
  std::unique_ptr<offload::Stream> stream_;
  ModelConstants constants_;
  std::vector<offload::DeviceMemory> parameters_;
  offload::DeviceMemory boundary_[2];
  offload::DeviceMemory workspace_, tokens_, loss_, logits_;
  offload::PinnedMemory host_tokens_, host_loss_, host_logits_;
};

}  // namespace spillway::engine
