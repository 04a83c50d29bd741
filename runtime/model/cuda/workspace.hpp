// How much workspace the CUDA operations may use: functions of shapes alone, so that a plan made
// without a GPU holds on one. The implementations ask their libraries for algorithms within these
// limits and refuse, by name, what needs more.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/base/dtype.hpp"
#include "runtime/base/units.hpp"
#include "runtime/model/ops.hpp"

namespace spillway::model::cuda {

/// What NVIDIA recommends for cuBLAS on Hopper and later; it is enough on the others too.
inline constexpr Bytes kMatmulWorkspace{32ULL << 20};
/// Libraries want their workspace aligned to this; the pieces of a layer's are aligned to less.
inline constexpr std::uint64_t kWorkspaceAlignment = 256;

/// Which implementation attends: a function of shape and dtype, never of a device's mood.
enum class AttentionKind : std::uint8_t {
  cudnn,  ///< flash attention of cuDNN
  own,    ///< attention_kernel.hpp: every shape and dtype, slower
};

/// cuDNN: 16-bit elements, heads of up to 128 in steps of 8 and rows in steps of 16 bytes; a single
/// position has no flash attention.
[[nodiscard]] constexpr AttentionKind attention_kind(const AttentionShape& shape, DType compute) {
  const AttentionStrides s = shape.row_strides();
  const bool aligned =
      (s.q | s.k | s.v | s.out | s.q_gradient | s.k_gradient | s.v_gradient) % 8 == 0;
  const bool suits = compute != DType::fp32 && shape.head_dim % 8 == 0 && shape.head_dim <= 128 &&
                     shape.sequence > 1 && aligned;
  return suits ? AttentionKind::cudnn : AttentionKind::own;
}

/// The backward pass of cuDNN attends to a part of the batch at a time: `batch` windows of all
/// heads, or one window of `kv_heads` heads with the query heads that share them.
struct AttentionPart {
  std::uint32_t batch = 0;
  std::uint32_t kv_heads = 0;
};

/// cuDNN's deterministic backward pass keeps the gradient of every score, 2 bytes for each pair of
/// positions and each query head, 4 GiB for 32 heads of 8,192 positions. Parts stay below this
/// where a single group of heads does.
inline constexpr std::uint64_t kScoreGradientBytes = 1ULL << 30;

/// Scores are kept in tiles of 128 rows and columns at most.
[[nodiscard]] constexpr std::uint64_t score_gradient_bytes(const AttentionShape& shape,
                                                           const AttentionPart& part) {
  const std::uint64_t padded = round_up(shape.sequence, 128);
  const std::uint64_t group = shape.heads / shape.kv_heads;
  return std::uint64_t{part.batch} * part.kv_heads * group * padded * padded * 2;
}

[[nodiscard]] constexpr std::uint32_t largest_divisor(std::uint32_t count, std::uint64_t limit) {
  for (std::uint32_t part = count; part > 1; --part) {
    if (count % part == 0 && part <= limit) return part;
  }
  return 1;
}

[[nodiscard]] constexpr AttentionPart attention_backward_part(const AttentionShape& shape,
                                                              bool deterministic) {
  if (!deterministic) return {shape.batch, shape.kv_heads};
  const std::uint64_t window = score_gradient_bytes(shape, {1, shape.kv_heads});
  if (window <= kScoreGradientBytes) {
    return {largest_divisor(shape.batch, kScoreGradientBytes / window), shape.kv_heads};
  }
  const std::uint64_t group = score_gradient_bytes(shape, {1, 1});
  return {1, largest_divisor(shape.kv_heads, kScoreGradientBytes / group)};
}

/// Of the larger of both passes. cuDNN's backward: scores' gradients (deterministic), the q
/// gradient's fp32 sums, k and v gradients of every query head before those of a group are added,
/// and two values a row; 32 MiB for what an engine keeps besides. Own: a value a row.
[[nodiscard]] constexpr Bytes attention_workspace(const AttentionShape& shape, DType compute,
                                                  bool deterministic) {
  const std::uint64_t rows = std::uint64_t{shape.batch} * shape.heads * shape.sequence;
  if (attention_kind(shape, compute) == AttentionKind::own) return Bytes{rows * 4};
  const AttentionPart part = attention_backward_part(shape, deterministic);
  const std::uint64_t padded = round_up(shape.sequence, 128);
  const std::uint64_t part_rows =
      std::uint64_t{part.batch} * part.kv_heads * (shape.heads / shape.kv_heads) * padded;
  const std::uint64_t scores = deterministic ? score_gradient_bytes(shape, part) : 0;
  const std::uint64_t padded_dim = round_up(shape.head_dim, 16);
  const std::uint64_t backward =
      scores + part_rows * (padded_dim * (4 + 4 + 4) + 16) + (32ULL << 20) + kWorkspaceAlignment;
  return Bytes{std::max(backward, rows * 4)};
}

}  // namespace spillway::model::cuda
