// CudaSharedDevice: what the CUDA backend has in common with other code on the same GPU. Handles of
// that code are borrowed for the length of a call.
//
// Threads: any.
#pragma once

#include "offload/cuda/detail/cuda_api.hpp"
#include "offload/cuda/detail/cuda_stream.hpp"
#include "offload/device_backend.hpp"
#include "runtime/base/mutex.hpp"

namespace spillway::offload::cuda {

class CudaSharedDevice final : public SharedDevice {
 public:
  /// The device is current. `api` outlives this.
  CudaSharedDevice(CudaApi& api, int device);

  /// From then on, calls of the thread do not disturb a graph that another thread captures.
  void bind_thread() override;
  void check_memory(DeviceSpan<const std::byte> memory) override;
  void record_behind(const ExternalWork& work, Event& event) override;

 private:
  /// Throws `Error{not_supported}` if what the stream is given goes into a graph.
  void check_not_captured(CudaApi::StreamHandle stream);

  CudaApi& api_;
  const int device_;
  Mutex mutex_;
  /// Carries nothing: it waits for an external event, and an event of ours is recorded behind that.
  CudaStream relay_ SPILLWAY_GUARDED_BY(mutex_);
};

}  // namespace spillway::offload::cuda
