#include "offload/cuda/detail/shared_device.hpp"

#include <fmt/format.h>

#include "offload/cuda/detail/current_device.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/units.hpp"

namespace spillway::offload::cuda {

CudaSharedDevice::CudaSharedDevice(CudaApi& api, int device)
    : api_(api), device_(device), relay_(api, "relay", Urgency::usual, kPageBytes) {}

void CudaSharedDevice::bind_thread() {
  check_cuda(api_, api_.set_device(device_), "making the GPU current on a thread");
  check_cuda(api_, api_.relax_captures(), "leaving captures of others alone");
}

void CudaSharedDevice::check_memory(DeviceSpan<const std::byte> memory) {
  if (memory.empty()) return;
  for (const std::byte* address : {memory.address(), memory.address() + memory.size() - 1}) {
    int found = -1;
    check_cuda(api_, api_.device_of(address, found), "asking where memory lies");
    check(found >= 0, ErrorCode::invalid_argument,
          fmt::format("{} bytes at {} are not memory of GPU {}, but of the host or of nobody; pass "
                      "memory of that GPU",
                      memory.size(), static_cast<const void*>(memory.address()), device_));
    check(
        found == device_, ErrorCode::invalid_argument,
        fmt::format("{} bytes at {} are memory of GPU {}, and GPU {} is used here; pass memory of "
                    "that GPU",
                    memory.size(), static_cast<const void*>(memory.address()), found, device_));
  }
}

void CudaSharedDevice::check_not_captured(CudaApi::StreamHandle stream) {
  bool captured = false;
  check_cuda(api_, api_.is_captured(stream, captured), "asking about the stream that was given");
  check(!captured, ErrorCode::not_supported,
        "the stream that was given is being captured into a CUDA graph, whose work runs later and "
        "again and again: nothing can be ordered behind it. Compile without graphs (torch.compile "
        "has them with mode=\"reduce-overhead\" and \"max-autotune\"), or leave gradients and "
        "steps out of what torch.cuda.graph captures");
}

void CudaSharedDevice::record_behind(const ExternalWork& work, Event& event) {
  SPILLWAY_ASSERT(work.kind != ExternalWork::Kind::none);
  auto* const own = dynamic_cast<CudaEvent*>(&event);
  SPILLWAY_ASSERT(own != nullptr);
  if (work.kind == ExternalWork::Kind::stream) {
    // CUDA's default stream is that of whichever GPU is current.
    const CurrentDevice current(api_, device_);
    check_not_captured(work.handle);
    return check_cuda(api_, api_.record(own->native(), work.handle),
                      "recording an event on the stream that was given");
  }
  check(work.handle != nullptr, ErrorCode::invalid_argument,
        "the event to wait for is a null pointer; pass a cudaEvent_t that was recorded");
  const Lock lock(mutex_);
  check_cuda(api_, api_.wait(relay_.native(), work.handle), "waiting for the event that was given");
  relay_.record(event);
}

}  // namespace spillway::offload::cuda
