#include "runtime/engine/device/compute_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cpu_adam/adam.hpp"
#include "offload/cuda/cuda_backend.hpp"
#include "offload/cuda/cuda_device.hpp"
#include "offload/host/host_backend.hpp"
#include "runtime/base/cuda_library_directories.hpp"
#include "runtime/base/error.hpp"
#include "runtime/model/cuda/cuda_ops.hpp"
#include "runtime/model/host/host_ops.hpp"

namespace spillway::engine {
namespace {

/// Share of the device's free memory, with the context in place, that a run takes. The rest is for
/// what comes later and has no figure yet: kernels that cuBLASLt and cuDNN load or compile on first
/// use, the driver's memory for their stacks, and NCCL's buffers.
constexpr double kShareOfDeviceMemory = 0.95;

/// Bytes of the pinned buffer through which what cannot be pinned is copied: pieces of 4 MiB for
/// each of 8 streams, and no more than a sixteenth of the host memory of a small run.
Bytes bounce_buffer(Bytes host) { return std::min(32_MiB, Bytes{host.value() / 16}); }

bool is_cuda(const config::TrainOptions& options) {
  return options.device.value_or(config::DeviceKind::host) == config::DeviceKind::cuda;
}

std::unique_ptr<model::Ops> make_host_ops(const config::TrainOptions& options) {
  model::host::HostOpsOptions host;
  host.compute_threads = static_cast<int>(options.compute_threads);
  host.compute = options.compute;
  return model::host::make_ops(host);
}

model::cuda::CudaMath math_of(const config::TrainOptions& options, Bytes score_gradients) {
  return {.compute = options.compute,
          .deterministic = options.deterministic,
          .tf32 = options.tf32,
          .own_attention = options.attention == config::AttentionChoice::own,
          .score_gradients = score_gradients,
          .generation = options.device_generation.value_or(0)};
}

void check_usable(int index) {
  const std::string reason = offload::cuda_unavailable_reason(index);
  check(reason.empty(), ErrorCode::not_supported,
        "--device cuda: " + reason + "; --device host runs without a GPU");
}

}  // namespace

config::DeviceKind usable_device() {
  return offload::cuda_unavailable_reason().empty() ? config::DeviceKind::cuda
                                                    : config::DeviceKind::host;
}

std::optional<std::string> check_device(const config::TrainOptions& options) {
  if (options.device == config::DeviceKind::cuda) check_usable(options.device_index);
  if (options.device || !options.device_memory) return std::nullopt;
  const std::string reason = offload::cuda_unavailable_reason();
  if (reason.empty()) return std::nullopt;
  return fmt::format(
      "device memory of {} without a GPU: {}; it is a part of host memory, and the CPU computes",
      format_bytes(*options.device_memory), reason);
}

std::uint32_t generation_of(int index) {
  if (!offload::cuda_unavailable_reason(index).empty()) return 0;
  const offload::CudaDevice device = offload::query_cuda_device(index);
  return static_cast<std::uint32_t>(10 * device.compute_major + device.compute_minor);
}

model::cuda::GemmChoices products_of(const DeviceRecord& record) {
  if (record.algorithms.empty()) return {};
  return model::cuda::GemmChoices::from_json(record.algorithms);
}

model::cuda::GemmChoices choose_products(const ProductSources& sources) {
  if (sources.resumed != nullptr) return products_of(*sources.resumed);
  model::cuda::GemmChoices choices = sources.measured;
  if (sources.continued != nullptr) choices.take(products_of(*sources.continued));
  return choices;
}

std::unique_ptr<model::Ops> make_ops(const config::TrainOptions& options,
                                     model::cuda::GemmChoices products, Bytes score_gradients) {
  if (!is_cuda(options)) return make_host_ops(options);
  check_usable(options.device_index);
  return model::cuda::make_ops({.math = math_of(options, score_gradients),
                                .device = options.device_index,
                                .choices = std::move(products),
                                .library_directories = cuda_library_directories()});
}

DeviceRecord record_of(const config::TrainOptions& options, const model::Ops& ops) {
  const auto device = options.device.value_or(config::DeviceKind::host);
  DeviceRecord record{.name = device_name(device, options.device_index),
                      .libraries = {},
                      .algorithms = {},
                      .attention = {}};
  if (const auto* cuda = dynamic_cast<const model::cuda::CudaOps*>(&ops)) {
    record.libraries = cuda->libraries();
    record.algorithms = cuda->choices().to_json();
    record.attention = cuda->attention();
  }
  return record;
}

std::unique_ptr<model::Ops> make_sizing_ops(const config::TrainOptions& options,
                                            Bytes score_gradients) {
  if (is_cuda(options)) return model::cuda::make_sizing_ops(math_of(options, score_gradients));
  return make_host_ops(options);
}

std::unique_ptr<offload::DeviceBackend> make_backend(const config::TrainOptions& options,
                                                     const plan::Budgets& budgets,
                                                     WakeSignal* wake) {
  if (is_cuda(options)) {
    check_usable(options.device_index);
    return offload::make_cuda_backend({.device_capacity = budgets.device,
                                       .pinned_capacity = budgets.host,
                                       .device = options.device_index,
                                       .pinned_bound = options.host_memory
                                                           ? offload::PinnedBound::capacity
                                                           : offload::PinnedBound::available,
                                       .bounce_buffer = bounce_buffer(budgets.host)});
  }
  return offload::make_host_backend({.device_capacity = budgets.device,
                                     .pinned_capacity = budgets.host,
                                     .link_gigabytes_per_second = options.host_link_gbps,
                                     .wake = wake});
}

std::unique_ptr<DeviceMath> make_device_math(const config::TrainOptions& options,
                                             offload::Stream& compute) {
  if (is_cuda(options)) return make_cuda_device_math(compute);
  return make_host_device_math(cpu_adam::isa_or_best(options.isa));
}

std::string device_name(config::DeviceKind device, int index) {
  return device == config::DeviceKind::cuda ? offload::query_cuda_device(index).name : "host";
}

bool shares_host_memory(int index) { return offload::query_cuda_device(index).integrated; }

Bytes free_device_memory(int index) {
  const auto free = static_cast<double>(offload::query_cuda_device(index).free_memory.value());
  return Bytes{static_cast<std::uint64_t>(free * kShareOfDeviceMemory)};
}

}  // namespace spillway::engine
