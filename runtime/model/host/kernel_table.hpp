// The table of this instruction set's kernels: what kernels_<isa>.cpp includes. See
// kernel_math.hpp.
#pragma once

#include "runtime/model/host/kernel_attention.hpp"
#include "runtime/model/host/kernel_loss.hpp"
#include "runtime/model/host/kernel_rows.hpp"

namespace spillway::model::host::SPILLWAY_SIMD {

template <class T>
constexpr KernelTable<T> make_table() {
  return {.norm_forward = norm_forward<T>,
          .norm_backward = norm_backward<T>,
          .attention_forward = attention_forward<T>,
          .attention_backward = attention_backward<T>,
          .gelu_forward = gelu_forward<T>,
          .gelu_backward = gelu_backward<T>,
          .gated_forward = gated_forward<T>,
          .gated_backward = gated_backward<T>,
          .rotate = rotate<T>,
          .add_rows = add_rows<T>,
          .accumulate = accumulate<T>,
          .column_sum = column_sum<T>,
          .cross_entropy = cross_entropy<T>,
          .scan_vocabulary = scan_vocabulary<T>,
          .vocabulary_gradient = vocabulary_gradient<T>,
          .widen = widen_all<T>,
          .narrow = narrow_all<T>};
}

}  // namespace spillway::model::host::SPILLWAY_SIMD
