// The kernels of the update, as host code starts them. For any thread.
#pragma once

#include "cpu_adam/cuda/detail/quantized_body.hpp"
#include "cpu_adam/cuda/detail/update_body.hpp"

namespace spillway::cpu_adam::cuda::detail {

/// Starts the update, which must not be of an empty range. `stream`: a cudaStream_t. Throws
/// `Error{device_error}`.
void launch_update(const UpdateJob& job, StateFormat format, DType gradient, void* stream);
void launch_quantized(const QuantizedJob& job, DType gradient, void* stream);

}  // namespace spillway::cpu_adam::cuda::detail
