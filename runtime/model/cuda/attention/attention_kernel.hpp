// Our own attention on the device: every dtype, head size and grouping, simple and deterministic.
// For what cuDNN does not serve (fp32 above all), and the oracle of what it does. Arithmetic lies
// in bodies/attention.hpp.
//
// `stream` is a cudaStream_t. A call only enqueues on it. Heads of up to about 256 elements, as the
// device's shared memory allows; larger ones are refused by `check_own_attention`.
#pragma once

#include "runtime/model/ops.hpp"

namespace spillway::model::cuda {

/// Throws `Error{not_supported}` if rows of `shape` do not fit the device's shared memory.
void check_own_attention(const AttentionShape& shape);

void own_attention_forward(void* stream, DType compute, const AttentionShape& shape,
                           const AttentionForwardArguments& arguments);
/// Takes 4 bytes of workspace a row, as workspace.hpp says.
void own_attention_backward(void* stream, DType compute, const AttentionShape& shape,
                            const AttentionBackwardArguments& arguments);

}  // namespace spillway::model::cuda
