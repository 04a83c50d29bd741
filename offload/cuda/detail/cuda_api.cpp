#include "offload/cuda/detail/cuda_api.hpp"

#include <fmt/format.h>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::offload::cuda {
namespace {

/// The oldest generation that the kernels are compiled for.
constexpr int kOldestComputeMajor = 8;

constexpr std::string_view kKernelRemedy = "if a kernel did, compute-sanitizer tells which";
constexpr std::string_view kCaptureRemedy =
    "somebody in this process captures a CUDA graph at the same time, which allows no such call of "
    "this thread: capture before training starts, between two steps, or with "
    "capture_error_mode=\"thread_local\" (torch.cuda.graph)";

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string without_driver(CudaApi& api) {
  int driver = 0;
  int runtime = 0;
  api.versions(driver, runtime);
  if (driver == 0) return "no NVIDIA driver was found (libcuda.so.1); install one";
  return fmt::format(
      "the NVIDIA driver supports CUDA {} and this build needs {}; update the driver",
      version_text(driver), version_text(runtime));
}

}  // namespace

void check_cuda(CudaApi& api, Status status, std::string_view action, SourceLocation where) {
  if (status == kSuccess) [[likely]] {
    return;
  }
  const bool captures = status >= kFirstOfCapture && status <= kLastOfCapture;
  throw Error(ErrorCode::device_error,
              fmt::format("{} failed: {}; {}", action, api.describe(status),
                          captures ? kCaptureRemedy : kKernelRemedy),
              status, where);
}

void log_cuda(CudaApi& api, Status status, std::string_view action) noexcept {
  if (status == kSuccess || status == kRuntimeUnloading || api.was_logged(status)) return;
  try {
    log_error("{} failed: {}; the same is not logged again", action, api.describe(status));
  } catch (...) {
    log_error("{} failed: CUDA's error {}", action, status);
  }
}

std::string unavailable_reason(CudaApi* api, int device) {
  if (api == nullptr) {
    return "this build has no CUDA backend: it was built where nvcc or the headers of cuBLASLt, "
           "cuDNN and cudnn-frontend were missing; `tools/setup cuda` installs them";
  }
  int count = 0;
  const Status status = api->device_count(count);
  if (status == kInsufficientDriver) return without_driver(*api);
  if (status == kNoDevice || (status == kSuccess && count == 0)) {
    return "the NVIDIA driver shows no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES";
  }
  if (status != kSuccess) return "CUDA does not start: " + api->describe(status);
  if (device < 0 || device >= count) {
    return fmt::format("there is no GPU {}: this machine has {}, counted from 0", device, count);
  }
  CudaDevice found;
  const Status asked = api->properties(device, found);
  if (asked != kSuccess) return fmt::format("GPU {}: {}", device, api->describe(asked));
  if (found.compute_major < kOldestComputeMajor) {
    return fmt::format("GPU {} ({}) has compute capability {}.{}; {}.0 or newer is needed", device,
                       found.name, found.compute_major, found.compute_minor, kOldestComputeMajor);
  }
  return {};
}

CudaDevice query_device(CudaApi& api, int device) {
  const std::string reason = unavailable_reason(&api, device);
  check(reason.empty(), ErrorCode::not_supported, reason);
  check_cuda(api, api.set_device(device), fmt::format("starting CUDA on GPU {}", device));
  CudaDevice found;
  check_cuda(api, api.properties(device, found), "asking for the GPU's properties");
  check_cuda(api, api.free_memory(found.free_memory), "asking for the GPU's free memory");
  api.versions(found.driver_version, found.runtime_version);
  if (found.numa_node.has_value()) return found;
  try {
    found.numa_node = node_of_pci_device(found.pci_bus_id);
  } catch (const Error& error) {
    // A container may hide the PCI tree: memory is then taken from wherever the kernel likes.
    log_debug("the memory node of GPU {} is unknown: {}", device, error.what());
  }
  return found;
}

}  // namespace spillway::offload::cuda

namespace spillway::offload {

std::string cuda_unavailable_reason(int device) {
  const auto api = cuda::make_cuda_api();
  return cuda::unavailable_reason(api.get(), device);
}

int count_cuda_devices() {
  const auto api = cuda::make_cuda_api();
  int count = 0;
  if (api == nullptr || api->device_count(count) != cuda::kSuccess) return 0;
  return count;
}

CudaDevice query_cuda_device(int device) {
  const auto api = cuda::make_cuda_api();
  check(api != nullptr, ErrorCode::not_supported, cuda::unavailable_reason(nullptr, device));
  return cuda::query_device(*api, device);
}

}  // namespace spillway::offload
