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
/// Rows of logits begin at multiples of this: 16 bytes of 16-bit elements, which matrix products
/// read at once. GPT-2's vocabulary of 50,257 is no multiple of it.
inline constexpr std::uint64_t kRowElements = 8;
/// Libraries want their workspace aligned to this; the pieces of a layer's are aligned to less.
inline constexpr std::uint64_t kWorkspaceAlignment = 256;

/// Bytes that every gemm may use.
[[nodiscard]] constexpr Bytes gemm_workspace() {
  return kGemmWorkspace + Bytes{kWorkspaceAlignment};
}

/// What the gradients of scores may take at once where memory is scarce.
inline constexpr Bytes kScoreGradients{1ULL << 30};
/// Tiles of a part of attention's backward pass, one of 128 positions of a query head: more than
/// any GPU has multiprocessors, so that each of them has work.
inline constexpr std::uint64_t kTilesThatFill = 192;
inline constexpr std::uint64_t kTilePositions = 128;

/// Settings of the operations that are part of the mathematics: they change bits, and workspaces.
struct CudaMath {
  DType compute = DType::bf16;
  /// Allows only algorithms with one order of sums; else the fastest is taken, reported by name.
  bool deterministic = true;
  bool tf32 = false;           ///< gemms of fp32 operands on tensor cores, 10 bits of them
  bool own_attention = false;  ///< our own attention where cuDNN's would serve too
  /// Bounds what a part of deterministic attention keeps, mostly gradients of scores. It changes no
  /// sum: no number of one head depends on those of another part.
  Bytes score_gradients = kScoreGradients;
  /// Tiles that a part has at least, whatever it keeps. No sum depends on this either.
  std::uint64_t least_tiles = kTilesThatFill;
  /// Compute capability of the GPU, 90 for 9.0, which decides what is kept and never what is
  /// computed. 0: not known, as one that keeps most.
  std::uint32_t generation = 0;
};

/// Whether cuDNN's deterministic backward pass keeps the gradients of scores. That of compute
/// capability 10.0 and 10.3 adds up in order without them.
[[nodiscard]] constexpr bool keeps_score_gradients(const CudaMath& math) {
  return math.deterministic && math.generation != 100 && math.generation != 103;
}

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
  const std::uint64_t padded = round_up(shape.sequence, kTilePositions);
  const std::uint64_t group = shape.heads / shape.kv_heads;
  return std::uint64_t{part.batch} * part.kv_heads * group * padded * padded * 2;
}

/// Bytes that the backward pass keeps of a part's rows: the fp32 sums of q's gradient, k and v
/// gradients of every query head before those of a group are added, and two values a row.
[[nodiscard]] constexpr std::uint64_t row_bytes(const AttentionShape& shape,
                                                const AttentionPart& part) {
  const std::uint64_t rows = std::uint64_t{part.batch} * part.kv_heads *
                             (shape.heads / shape.kv_heads) *
                             round_up(shape.sequence, kTilePositions);
  return rows * (round_up(shape.head_dim, 16) * (4 + 4 + 4) + 16);
}

/// Bytes of a part that are bounded: the score gradients, or the rest where there are none.
[[nodiscard]] constexpr std::uint64_t bounded_bytes(const AttentionShape& shape,
                                                    const AttentionPart& part,
                                                    const CudaMath& math) {
  return keeps_score_gradients(math) ? score_gradient_bytes(shape, part) : row_bytes(shape, part);
}

/// Returns the largest divisor of `count` up to `most`, or the smallest from `least` on where that
/// is more; `count` where there is none.
[[nodiscard]] constexpr std::uint32_t divisor_within(std::uint32_t count, std::uint64_t least,
                                                     std::uint64_t most) {
  const std::uint64_t first = std::max<std::uint64_t>(1, std::min<std::uint64_t>(count, most));
  std::uint64_t part = first;
  while (count % part != 0) --part;
  while (part < least && part < count) {
    do ++part;
    while (count % part != 0);
  }
  return static_cast<std::uint32_t>(part);
}

/// Returns the largest part that keeps the bound of `math`; a larger one where that would leave
/// multiprocessors idle, as with a batch whose size is a prime; or a single group of heads.
[[nodiscard]] constexpr AttentionPart attention_backward_part(const AttentionShape& shape,
                                                              const CudaMath& math) {
  if (!math.deterministic) return {shape.batch, shape.kv_heads};
  const std::uint64_t most = math.score_gradients.value();
  const std::uint64_t window = bounded_bytes(shape, {1, shape.kv_heads}, math);
  const std::uint64_t group = bounded_bytes(shape, {1, 1}, math);
  const std::uint64_t tiles =
      shape.heads / shape.kv_heads * (round_up(shape.sequence, kTilePositions) / kTilePositions);
  const std::uint64_t groups = (math.least_tiles + tiles - 1) / tiles;
  if (window > most && groups <= shape.kv_heads) {
    return {1, divisor_within(shape.kv_heads, groups, most / group)};
  }
  const std::uint64_t windows = (groups + shape.kv_heads - 1) / shape.kv_heads;
  return {divisor_within(shape.batch, windows, most / window), shape.kv_heads};
}

/// Bytes that the larger of both passes needs: of cuDNN what the backward pass keeps of a part, and
/// 32 MiB for what an engine keeps besides. Our own needs a value a row.
[[nodiscard]] constexpr Bytes attention_workspace(const AttentionShape& shape,
                                                  const CudaMath& math) {
  // Our own kernels need no more where cuDNN turns a shape down.
  const std::uint64_t own = std::uint64_t{shape.batch} * shape.heads * shape.sequence * 4;
  if (attention_kind(shape, math) == AttentionKind::own) return Bytes{own};
  const AttentionPart part = attention_backward_part(shape, math);
  const std::uint64_t scores = keeps_score_gradients(math) ? score_gradient_bytes(shape, part) : 0;
  const std::uint64_t cudnn = scores + row_bytes(shape, part) + (32ULL << 20) + kWorkspaceAlignment;
  return Bytes{std::max(cudnn, own)};
}

}  // namespace spillway::model::cuda
