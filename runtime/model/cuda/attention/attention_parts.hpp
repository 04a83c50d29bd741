// The parts of cuDNN's backward pass (workspace.hpp): what each of them is given of a call.
#pragma once

#include <cstdint>

#include "runtime/base/dtype.hpp"
#include "runtime/model/cuda/workspace.hpp"

namespace spillway::model::cuda {

/// The first window, and the first heads, of a part.
struct AttentionPlace {
  std::uint32_t window = 0;
  std::uint32_t head = 0;
  std::uint32_t kv_head = 0;
};

/// Returns the head's rows from the first position of the window on.
template <class View>
[[nodiscard]] HeadRows<View> rows_from(const HeadRows<View>& all, const AttentionShape& shape,
                                       DType dtype, std::uint32_t window, std::uint32_t head) {
  const std::uint64_t element =
      std::uint64_t{window} * shape.sequence * all.stride + std::uint64_t{head} * shape.head_dim;
  const std::size_t first = element * size_of(dtype);
  return {all.data.subspan(first, all.data.size() - first), all.stride};
}

/// Returns a call's arguments for the part that begins at `place`.
[[nodiscard]] inline AttentionBackwardArguments arguments_of_part(
    const AttentionBackwardArguments& a, const AttentionShape& shape, DType dtype,
    const AttentionPlace& place) {
  const auto of_query = [&](const auto& all) {
    return rows_from(all, shape, dtype, place.window, place.head);
  };
  const auto of_key = [&](const auto& all) {
    return rows_from(all, shape, dtype, place.window, place.kv_head);
  };
  const std::uint64_t row =
      (std::uint64_t{place.window} * shape.heads + place.head) * shape.sequence;
  return {.q = of_query(a.q),
          .k = of_key(a.k),
          .v = of_key(a.v),
          .out = of_query(a.out),
          .out_gradient = of_query(a.out_gradient),
          .log_sum = a.log_sum.subspan(row, a.log_sum.size() - row),
          .q_gradient = of_query(a.q_gradient),
          .k_gradient = of_key(a.k_gradient),
          .v_gradient = of_key(a.v_gradient),
          .workspace = a.workspace};
}

/// Calls `attend` with the arguments of each part. The parts cover every window and head once.
template <class Attend>
void for_each_part(const AttentionBackwardArguments& a, const AttentionShape& shape,
                   const CudaMath& math, Attend attend) {
  const AttentionPart part = attention_backward_part(shape, math);
  const std::uint32_t group = shape.heads / shape.kv_heads;
  for (std::uint32_t window = 0; window < shape.batch; window += part.batch) {
    for (std::uint32_t kv = 0; kv < shape.kv_heads; kv += part.kv_heads) {
      attend(arguments_of_part(a, shape, math.compute,
                               {.window = window, .head = kv * group, .kv_head = kv}));
    }
  }
}

}  // namespace spillway::model::cuda
