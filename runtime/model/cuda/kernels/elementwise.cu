// Launches elementwise operations.
#include "runtime/model/cuda/kernels/bodies/elementwise.hpp"
#include "runtime/model/cuda/launch.cuh"

namespace spillway::model::cuda {

template void launch(void*, DType, const FillZeroOp&);
template void launch(void*, DType, const RoundSumsOp&);

}  // namespace spillway::model::cuda
