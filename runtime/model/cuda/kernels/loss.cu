// Launches embedding and loss.
#include "runtime/model/cuda/kernels/bodies/cross_entropy.hpp"
#include "runtime/model/cuda/kernels/bodies/embedding.hpp"
#include "runtime/model/cuda/kernels/bodies/vocabulary.hpp"
#include "runtime/model/cuda/launch.cuh"

namespace spillway::model::cuda {

template void launch(void*, DType, const EmbeddingForwardOp&);
template void launch(void*, DType, const EmbeddingBackwardOp&);
template void launch(void*, DType, const CrossEntropyArguments&);
template void launch(void*, DType, const ScanVocabularyOp&);
template void launch(void*, DType, const MergeScansOp&);
template void launch(void*, DType, const SumLossesOp&);
template void launch(void*, DType, const VocabularyGradientOp&);

}  // namespace spillway::model::cuda
