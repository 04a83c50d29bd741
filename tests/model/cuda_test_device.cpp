#include "tests/model/cuda_test_device.hpp"

#include "offload/cuda/cuda_backend.hpp"
#include "offload/cuda/cuda_device.hpp"
#include "runtime/base/cuda_library_directories.hpp"

namespace spillway::model {

std::string why_no_gpu() {
  const std::string reason = offload::cuda_unavailable_reason();
  return reason.empty() ? reason : "this machine has no usable GPU: " + reason;
}

void use_gpu() {
  if (TestDevice::current() != nullptr) return;
  // Never freed: memory of static storage duration may outlive every other owner.
  auto* device = new TestDevice;
  device->backend =
      offload::make_cuda_backend({.device_capacity = 8_GiB, .pinned_capacity = 8_GiB});
  device->stream = device->backend->make_stream("compute");
  TestDevice::current() = device;
}

std::unique_ptr<Ops> make_gpu_ops(const cuda::CudaMath& math) {
  std::unique_ptr<Ops> ops =
      cuda::make_ops({.math = math, .library_directories = cuda_library_directories()});
  ops->bind_stream(TestDevice::current()->stream->native());
  return ops;
}

}  // namespace spillway::model
