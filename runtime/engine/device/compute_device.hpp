// The device that FWD-BWD runs on: its backend, its operators and the optimizer's arithmetic on its
// memory, all chosen by one option. Control thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "offload/device_backend.hpp"
#include "runtime/base/wake_signal.hpp"
#include "runtime/config/train_options.hpp"
#include "runtime/engine/device/device_math.hpp"
#include "runtime/model/cuda/gemm/gemm_choices.hpp"
#include "runtime/model/cuda/workspace.hpp"
#include "runtime/model/ops.hpp"
#include "runtime/plan/machine_profile.hpp"

namespace spillway::engine {

/// Returns cuda where this build has it and a GPU is usable, else the host.
[[nodiscard]] config::DeviceKind usable_device();

/// Throws `Error{not_supported}`, with the reason, if the options name a GPU that is not usable.
/// Returns a line for the user where they give memory to a GPU that nobody named and that is not
/// there: the host computes then, in a part of its own memory of that size.
[[nodiscard]] std::optional<std::string> check_device(const config::TrainOptions& options);

/// Returns the compute capability of a GPU, 90 for 9.0; 0 where none is usable.
[[nodiscard]] std::uint32_t generation_of(int index);

/// What bits depend on besides the options: a run records it and goes on with it.
struct DeviceRecord {
  std::string name;         ///< "host", or the GPU as its driver names it
  std::string libraries;    ///< of the GPU's operators, with versions; empty for the host
  std::string algorithms;   ///< of its matrix products, a JSON document; empty for the host
  std::string attention{};  ///< which kernels attend, and cuDNN's engines; empty for the host
  bool operator==(const DeviceRecord&) const = default;
};

/// Where the algorithms of a run's matrix products come from.
struct ProductSources {
  const DeviceRecord* resumed = nullptr;     ///< of the run that is resumed, if there is one
  const DeviceRecord* continued = nullptr;   ///< of the run that a new one goes on from, if any
  const model::cuda::GemmChoices& measured;  ///< on this machine
};

/// Returns the algorithms of a run's matrix products. A resumed run keeps its own. A new run takes
/// those measured here, but prefers those of the run that it goes on from. The library's first
/// proposal serves the rest.
[[nodiscard]] model::cuda::GemmChoices choose_products(const ProductSources& sources);

/// Returns the algorithms that a record names.
[[nodiscard]] model::cuda::GemmChoices products_of(const DeviceRecord& record);

/// Makes operators that are ready to run, with the algorithms of `products` where they are of this
/// GPU and library. `score_gradients`: as CudaMath takes it. Throws `Error{not_supported}`, with
/// the reason, if the device is not usable.
[[nodiscard]] std::unique_ptr<model::Ops> make_ops(
    const config::TrainOptions& options, model::cuda::GemmChoices products = {},
    Bytes score_gradients = model::cuda::kScoreGradients);
/// Records what `ops` has planned so far.
[[nodiscard]] DeviceRecord record_of(const config::TrainOptions& options, const model::Ops& ops);
/// Makes operators to plan with, also on a machine without the device.
[[nodiscard]] std::unique_ptr<model::Ops> make_sizing_ops(
    const config::TrainOptions& options, Bytes score_gradients = model::cuda::kScoreGradients);

/// Makes the backend of the options' device. On the host, all that completes notifies `wake`, which
/// may be null.
[[nodiscard]] std::unique_ptr<offload::DeviceBackend> make_backend(
    const config::TrainOptions& options, const plan::Budgets& budgets, WakeSignal* wake);
[[nodiscard]] std::unique_ptr<DeviceMath> make_device_math(const config::TrainOptions& options,
                                                           offload::Stream& compute);

/// Returns "host", or the GPU as its driver names it.
[[nodiscard]] std::string device_name(config::DeviceKind device, int index = 0);

/// Returns whether the memory of a GPU is the host's, as in a system on a chip.
[[nodiscard]] bool shares_host_memory(int index);
/// Bytes that a run may take of a device that has memory of its own.
[[nodiscard]] Bytes free_device_memory(int index = 0);

}  // namespace spillway::engine
