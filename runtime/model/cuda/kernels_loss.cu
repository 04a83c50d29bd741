// Launches embedding and loss.
#include "runtime/model/cuda/bodies/cross_entropy.hpp"
#include "runtime/model/cuda/bodies/embedding.hpp"
#include "runtime/model/cuda/bodies/vocabulary.hpp"
#include "runtime/model/cuda/launch.cuh"

namespace spillway::model::cuda {

template void launch(void*, DType, const EmbeddingForwardOp&);
template void launch(void*, DType, const EmbeddingBackwardOp&);
template void launch(void*, DType, const CrossEntropyArguments&);
template void launch(void*, DType, const ScanVocabularyOp&);
template void launch(void*, DType, const SumLossesOp&);
template void launch(void*, DType, const VocabularyGradientOp&);

}  // namespace spillway::model::cuda
