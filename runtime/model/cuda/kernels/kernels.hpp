// Own CUDA kernels of Ops: the row-wise operations, all but gemms and attention. Arithmetic and
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

#include "runtime/model/row_ops.hpp"

namespace spillway::model::cuda {

/// Enqueues one of RowOp's. The sources of this folder instantiate it for each of them.
template <class Op>
void launch(void* stream, DType compute, const Op& op);

}  // namespace spillway::model::cuda
