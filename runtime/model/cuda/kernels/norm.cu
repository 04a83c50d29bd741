// Launches norms and column sums.
#include "runtime/model/cuda/kernels/bodies/norm.hpp"
#include "runtime/model/cuda/launch.cuh"

namespace spillway::model::cuda {

template void launch(void*, DType, const NormForwardOp&);
template void launch(void*, DType, const NormBackwardOp&);
template void launch(void*, DType, const BiasGradientOp&);

}  // namespace spillway::model::cuda
