// CurrentDevice: the device that calls of CUDA mean which name none. One thread.
#pragma once

#include "offload/cuda/detail/cuda_api.hpp"

namespace spillway::offload::cuda {

/// Makes a device current on this thread for as long as this lives. What was current before is
/// again afterwards, by its context: a thread that has chosen no device has none, and to choose
/// device 0 for it would start CUDA there.
class CurrentDevice {
 public:
  CurrentDevice(CudaApi& api, int device) : api_(api) {
    int current = -1;
    check_cuda(api_, api_.current_device(current), "asking which GPU is current");
    if (current == device) return;
    check_cuda(api_, api_.current_context(before_), "asking which context is current");
    check_cuda(api_, api_.set_device(device), "making a GPU current");
    changed_ = true;
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() {
    if (changed_) log_cuda(api_, api_.set_context(before_), "making a context current again");
  }

 private:
  CudaApi& api_;
  CudaApi::ContextHandle before_ = nullptr;
  bool changed_ = false;
};

}  // namespace spillway::offload::cuda
