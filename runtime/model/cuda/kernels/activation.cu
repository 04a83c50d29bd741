// Launches activations and rotary embedding.
#include "runtime/model/cuda/kernels/bodies/activation.hpp"
#include "runtime/model/cuda/kernels/bodies/rope.hpp"
#include "runtime/model/cuda/launch.cuh"

namespace spillway::model::cuda {

template void launch(void*, DType, const RopeArguments&);
template void launch(void*, DType, const ActivationForwardOp&);
template void launch(void*, DType, const ActivationBackwardOp&);

}  // namespace spillway::model::cuda
