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

/// NVIDIA's recommendation for cuBLAS on Hopper and later; it is enough on the others too.
inline constexpr Bytes kGemmWorkspace{32ULL << 20};
/// Ops::logits_at_once has 2,048 tokens of a vocabulary of 128 Ki. A chunk moves 12 bytes a weight
/// of the projection (two readings of 2 bytes, an fp32 gradient read and written) and computes 6
/// FLOPs a weight and token: at 1,000 tokens that is 500 FLOPs a byte, and an H100 balances 300.
inline constexpr Bytes kLogitsAtOnce{1ULL << 30};
/// Libraries want their workspace aligned to this; the pieces of a layer's are aligned to less.
inline constexpr std::uint64_t kWorkspaceAlignment = 256;

/// Bytes that every gemm may use.
[[nodiscard]] constexpr Bytes gemm_workspace() {
  return kGemmWorkspace + Bytes{kWorkspaceAlignment};
}

/// What the gradients of scores may take at once where memory is scarce.
inline constexpr Bytes kScoreGradients{1ULL << 30};

/// Settings of the operations that are part of the mathematics: they change bits, and workspaces.
struct CudaMath {
  DType compute = DType::bf16;
  /// Allows only algorithms with one order of sums; else the fastest is taken, reported by name.
  bool deterministic = true;
  bool tf32 = false;           ///< gemms of fp32 operands on tensor cores, 10 bits of them
  bool own_attention = false;  ///< our own attention where cuDNN's would serve too
  /// Bounds the gradients of scores that the parts of deterministic attention keep. It changes no
  /// sum: no number of one head depends on those of another part.
  Bytes score_gradients = kScoreGradients;
};

/// Which implementation attends.
enum class AttentionKind : std::uint8_t {
  cudnn,  ///< flash attention of cuDNN
  own,    ///< attention_kernel.hpp: every shape and dtype, slower
};

/// Returns `cudnn` only for 16-bit elements, heads of up to 128 in steps of 8, rows in steps of 16
/// bytes, and positions in steps of 8, which keeps consecutive arrays in its workspace aligned.
[[nodiscard]] constexpr AttentionKind attention_kind(const AttentionShape& shape,
                                                     const CudaMath& math) {
  const AttentionStrides s = shape.row_strides();
  const std::uint64_t any = s.q | s.k | s.v | s.out | s.q_gradient | s.k_gradient | s.v_gradient;
  const bool suits = math.compute != DType::fp32 && shape.head_dim % 8 == 0 &&
                     shape.head_dim <= 128 && shape.sequence % 8 == 0 && any % 8 == 0;
  return suits && !math.own_attention ? AttentionKind::cudnn : AttentionKind::own;
}

/// The backward pass of cuDNN attends to a part of the batch at a time: `batch` windows of all
/// heads, or one window of `kv_heads` heads with the query heads that share them.
struct AttentionPart {
  std::uint32_t batch = 0;
  std::uint32_t kv_heads = 0;
};

/// Bytes of the score gradients that cuDNN's deterministic backward pass keeps: 2 for each pair of
/// positions and each query head, 4 GiB for 32 heads of 8,192 positions. Scores are kept in tiles
/// of 128 rows and columns at most.
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

/// Returns the largest part that keeps the bound of `math`, or a single group of heads.
[[nodiscard]] constexpr AttentionPart attention_backward_part(const AttentionShape& shape,
                                                              const CudaMath& math) {
  if (!math.deterministic) return {shape.batch, shape.kv_heads};
  const std::uint64_t most = math.score_gradients.value();
  const std::uint64_t window = score_gradient_bytes(shape, {1, shape.kv_heads});
  if (window <= most) return {largest_divisor(shape.batch, most / window), shape.kv_heads};
  const std::uint64_t group = score_gradient_bytes(shape, {1, 1});
  return {1, largest_divisor(shape.kv_heads, most / group)};
}

/// Bytes that the larger of both passes needs. The backward pass of cuDNN needs gradients of scores
/// (deterministic), the fp32 sums of q's gradient, k and v gradients of every query head before
/// those of a group are added, and two values a row; 32 MiB hold what an engine keeps besides. Our
/// own needs a value a row.
[[nodiscard]] constexpr Bytes attention_workspace(const AttentionShape& shape,
                                                  const CudaMath& math) {
  // Our own kernels need no more where cuDNN turns a shape down.
  const std::uint64_t own = std::uint64_t{shape.batch} * shape.heads * shape.sequence * 4;
  if (attention_kind(shape, math) == AttentionKind::own) return Bytes{own};
  const AttentionPart part = attention_backward_part(shape, math);
  const std::uint64_t rows = std::uint64_t{part.batch} * part.kv_heads *
                             (shape.heads / shape.kv_heads) * round_up(shape.sequence, 128);
  const std::uint64_t scores = math.deterministic ? score_gradient_bytes(shape, part) : 0;
  const std::uint64_t a_row = round_up(shape.head_dim, 16) * (4 + 4 + 4) + 16;
  const std::uint64_t cudnn = scores + rows * a_row + (32ULL << 20) + kWorkspaceAlignment;
  return Bytes{std::max(cudnn, own)};
}

}  // namespace spillway::model::cuda
