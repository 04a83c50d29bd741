// Own CUDA kernels of Ops: every operation but matrix products and attention. Arithmetic and
// indexing lie in bodies/, which plain compilers take too: tests run them on the CPU against the
// host Ops.
//
// `stream` is a cudaStream_t (offload::Stream::native()). A call only enqueues on it: no
// allocation, no synchronisation, so CUDA graphs can capture it. Spans are device memory of
// elements of `compute`, any alignment of that element; 16-byte alignment of addresses and strides
// makes a call fast. Arithmetic is fp32, sums of losses fp64. Every sum has an order that depends
// on the shape alone: equal inputs give equal bits on every GPU. NaN stays NaN, its bits may
// differ.
//
// Launch errors throw Error{device_error}. What only device memory tells, no call can refuse:
// a token outside the vocabulary makes its row NaN (forward) or is left out (backward), a target
// not below it makes the loss and its row's gradient NaN.
// Threads: one call at a time per stream.
#pragma once

#include "runtime/model/ops.hpp"

namespace spillway::model::cuda {

/// As Ops::reduction_workspace: for `norm_backward`, `cross_entropy` and `bias_gradient`. Grows
/// with both arguments.
[[nodiscard]] Bytes reduction_workspace(std::uint64_t rows, std::uint64_t columns);
/// As Ops::embedding_workspace: 16 bytes a token.
[[nodiscard]] Bytes embedding_workspace(const EmbeddingShape& shape);

void norm_forward(void* stream, DType compute, const NormShape& shape,
                  const NormForwardArguments& arguments);
void norm_backward(void* stream, DType compute, const NormShape& shape,
                   const NormBackwardArguments& arguments);
void rope(void* stream, DType compute, const RopeArguments& arguments);
void activation_forward(void* stream, DType compute, const ActivationShape& shape,
                        ConstTensor input, Tensor out);
void activation_backward(void* stream, DType compute, const ActivationShape& shape,
                         const ActivationBackwardArguments& arguments);
void embedding_forward(void* stream, DType compute, const EmbeddingShape& shape, Tokens tokens,
                       ConstTensor table, ConstTensor positions, Tensor out);
void embedding_backward(void* stream, DType compute, const EmbeddingShape& shape, Tokens tokens,
                        ConstTensor out_gradient, Gradient table, Gradient positions,
                        Tensor workspace);
void cross_entropy(void* stream, DType compute, const CrossEntropyArguments& arguments);
void scan_vocabulary(void* stream, const VocabularyTile& tile,
                     offload::DeviceSpan<VocabularyScan> scans);
void sum_losses(void* stream, Tokens targets, offload::DeviceSpan<const VocabularyScan> scans,
                offload::DeviceSpan<double> loss_sum, Tensor workspace);
void vocabulary_gradient(void* stream, DType compute, const VocabularyTile& tile,
                         offload::DeviceSpan<const VocabularyScan> scans, float gradient_scale,
                         Tensor logits_gradient);
void bias_gradient(void* stream, DType compute, std::uint64_t rows, ConstTensor out_gradient,
                   Gradient gradient, Tensor workspace);
void fill_zero(void* stream, offload::DeviceSpan<float> values);
/// C = fp32, to nearest even; sizes follow from `out`.
void narrow(void* stream, DType compute, offload::DeviceSpan<const float> input, Tensor out);

}  // namespace spillway::model::cuda
