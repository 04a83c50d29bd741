// Embedding and cross-entropy on the device.
#include "runtime/model/cuda/bodies/cross_entropy.hpp"
#include "runtime/model/cuda/bodies/embedding.hpp"
#include "runtime/model/cuda/bodies/vocabulary.hpp"
#include "runtime/model/cuda/device_runner.cuh"
#include "runtime/model/cuda/kernels.hpp"

namespace spillway::model::cuda {

Bytes embedding_workspace(const EmbeddingShape& shape) {
  return Bytes{bodies::embedding_bytes(shape)};
}

void embedding_forward(void* stream, DType compute, const EmbeddingShape& shape, Tokens tokens,
                       ConstTensor table, ConstTensor positions, Tensor out) {
  DeviceRunner runner(stream);
  bodies::embedding_forward(runner, compute, shape, tokens, table, positions, out);
}

void embedding_backward(void* stream, DType compute, const EmbeddingShape& shape, Tokens tokens,
                        ConstTensor out_gradient, Gradient table, Gradient positions,
                        Tensor workspace) {
  DeviceRunner runner(stream);
  bodies::embedding_backward(runner, compute, shape, tokens, out_gradient, table, positions,
                             workspace);
}

void cross_entropy(void* stream, DType compute, const CrossEntropyArguments& arguments) {
  DeviceRunner runner(stream);
  bodies::cross_entropy(runner, compute, arguments);
}

void scan_vocabulary(void* stream, const VocabularyTile& tile,
                     offload::DeviceSpan<VocabularyScan> scans) {
  DeviceRunner runner(stream);
  bodies::scan_vocabulary(runner, tile, scans);
}

void sum_losses(void* stream, Tokens targets, offload::DeviceSpan<const VocabularyScan> scans,
                offload::DeviceSpan<double> loss_sum, Tensor workspace) {
  DeviceRunner runner(stream);
  bodies::sum_losses(runner, targets, scans, loss_sum, workspace);
}

void vocabulary_gradient(void* stream, DType compute, const VocabularyTile& tile,
                         offload::DeviceSpan<const VocabularyScan> scans, float gradient_scale,
                         Tensor logits_gradient) {
  DeviceRunner runner(stream);
  bodies::vocabulary_gradient(runner, compute, tile, scans, gradient_scale, logits_gradient);
}

}  // namespace spillway::model::cuda
