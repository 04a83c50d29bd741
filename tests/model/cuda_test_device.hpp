// The GPU as a test device. In every build; without CUDA it says why there is none.
#pragma once

#include <memory>
#include <string>

#include "runtime/model/cuda/cuda_ops.hpp"
#include "tests/model/test_device.hpp"

namespace spillway::model {

/// Empty if there is a GPU; else "this machine has no usable GPU: ...".
[[nodiscard]] std::string why_no_gpu();
/// Makes the GPU the device of this process's tests, for good.
void use_gpu();
/// On the GPU's stream. After `use_gpu`.
[[nodiscard]] std::unique_ptr<Ops> make_gpu_ops(const cuda::CudaMath& math);

}  // namespace spillway::model
