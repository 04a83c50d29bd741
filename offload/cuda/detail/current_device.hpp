// CurrentDevice: the device that calls of CUDA mean which name none. One thread.
#pragma once

#include "offload/cuda/detail/cuda_api.hpp"

namespace spillway::offload::cuda {

/// Makes a device current on this thread for as long as this lives.
class CurrentDevice {
 public:
  CurrentDevice(CudaApi& api, int device) : api_(api), device_(device) {
    check_cuda(api_, api_.current_device(before_), "asking which GPU is current");
    if (before_ != device_) check_cuda(api_, api_.set_device(device_), "making a GPU current");
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice() {
    if (before_ != device_) log_cuda(api_, api_.set_device(before_), "making a GPU current again");
  }

 private:
  CudaApi& api_;
  const int device_;
  int before_ = -1;
};

}  // namespace spillway::offload::cuda
