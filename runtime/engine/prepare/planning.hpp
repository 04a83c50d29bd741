// Everything that is known before a byte of the run is allocated: the model's operators, the
// workload, the budgets and the placement. `spillway plan` stops here; `spillway train` goes on.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runtime/config/train_options.hpp"
#include "runtime/engine/machine/compute_device.hpp"
#include "runtime/engine/prepare/workload.hpp"
#include "runtime/model/ops.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/plan/machine_profile.hpp"

namespace spillway::engine {

/// The model with the operators of a device, ready to run and to be planned.
struct ModelRuntime {
  std::unique_ptr<model::Ops> ops;
  std::unique_ptr<model::Transformer> transformer;
};

/// The largest gradient_accumulation_steps with which a step of the model is planned.
[[nodiscard]] std::uint64_t most_micro_batches(const model::ModelConfig& config);

/// Fills what a configuration may leave open: device, context, threads. Throws
/// `Error{invalid_argument}` when the model cannot take the context. Call before everything else.
void resolve(config::TrainOptions& options, const model::ModelConfig& config);

/// Throws `Error{not_supported}` where the options' device is not usable here. `products`: as
/// `make_ops` takes them.
[[nodiscard]] ModelRuntime make_model_runtime(const model::ModelConfig& config,
                                              const config::TrainOptions& options,
                                              model::cuda::GemmChoices products = {});
/// The same to plan with, not to run: works for a device that this machine lacks.
[[nodiscard]] ModelRuntime make_model_sizes(const model::ModelConfig& config,
                                            const config::TrainOptions& options);

/// Where the run keeps its swap files: `options.nvme`, or RUN/state.
[[nodiscard]] std::vector<std::filesystem::path> state_directories(
    const config::TrainOptions& options, const std::filesystem::path& run);

/// The kernel of the run's updates.
[[nodiscard]] const cpu_adam::Kernel& update_kernel(const config::TrainOptions& options,
                                                    const plan::Workload& workload);

/// A placement within the budgets. Throws `Error{does_not_fit}` that names the tier, the bytes and
/// what would make it fit.
[[nodiscard]] plan::Placement place(const model::ModelConfig& config,
                                    const config::TrainOptions& options,
                                    const plan::Workload& workload, const plan::Budgets& budgets);

}  // namespace spillway::engine
