// Ops: the few operations that a decoder-only transformer is made of, on views of device memory.
// `host::make_ops` implements them on oneDNN and OpenMP. Nothing above this interface reads device
// memory, and no call allocates: temporaries come from the workspace that the plans asked for.
//
// C is the compute dtype that an Ops was made for; a `Tensor` is elements of C, row-major. Norm
// statistics, softmax, loss and gradients of parameters are fp32 (sums of losses fp64). Every
// reduction has a fixed order: equal inputs give equal bits, call after call.
// Threads: one call at a time, in the order of the compute stream. Plans are made at construction.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/dtype.hpp"
#include "runtime/base/units.hpp"
#include "runtime/model/row_ops.hpp"

namespace spillway::model {

// --- A gemm computes out [rows, columns] = op(a) [rows, inner] x op(b) [inner, columns], to which
// a bias and a residual may be added.

enum class GemmOutput : std::uint8_t {
  compute,   ///< C
  fp32,      ///< fp32, overwritten (logits)
  gradient,  ///< fp32, overwritten or added to, as `Gradient::first` says
};

struct GemmShape {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t inner = 0;
  bool transpose_a = false;  ///< a is stored [inner, rows]
  bool transpose_b = false;  ///< b is stored [columns, inner]
  bool bias = false;         ///< + bias [columns], C; only with output C
  bool residual = false;     ///< + residual [rows, columns], C; only with output C
  GemmOutput output = GemmOutput::compute;
  // Strides count the elements from one stored row to the next, where a matrix is a range of
  // another one's columns; 0 says that rows lie side by side. `residual` is strided as `out`.
  std::uint64_t a_stride = 0;
  std::uint64_t b_stride = 0;
  std::uint64_t out_stride = 0;
  bool operator==(const GemmShape&) const = default;
};

/// Handle of a prepared operation, with the workspace that a call of it needs.
struct Plan {
  std::uint32_t index = 0;
  Bytes workspace;
};
struct GemmPlan : Plan {};
struct AttentionPlan : Plan {};

struct GemmArguments {
  ConstTensor a;
  ConstTensor b;
  ConstTensor bias;
  ConstTensor residual;
  offload::DeviceSpan<std::byte> out;  ///< elements of C, or fp32 as planned; overlaps no input
  bool first = true;                   ///< output `gradient` only: overwrite
  Tensor workspace;
};

// --- Attention is causal and grouped: query head h reads key/value head h / (heads / kv_heads).

/// `HeadRows::stride` of every matrix of a call, in elements. 0: rows have only the heads.
struct AttentionStrides {
  std::uint64_t q = 0;
  std::uint64_t k = 0;
  std::uint64_t v = 0;
  std::uint64_t out = 0;  ///< and the gradient of it
  std::uint64_t q_gradient = 0;
  std::uint64_t k_gradient = 0;
  std::uint64_t v_gradient = 0;
  bool operator==(const AttentionStrides&) const = default;
};

struct AttentionShape {
  std::uint32_t batch = 0;
  std::uint32_t sequence = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  AttentionStrides strides = {};  ///< every call keeps to them
  bool operator==(const AttentionShape&) const = default;

  [[nodiscard]] constexpr std::uint64_t q_columns() const {
    return std::uint64_t{heads} * head_dim;
  }
  [[nodiscard]] constexpr std::uint64_t kv_columns() const {
    return std::uint64_t{kv_heads} * head_dim;
  }
  /// Returns `strides` with every 0 resolved.
  [[nodiscard]] constexpr AttentionStrides row_strides() const {
    const auto or_packed = [](std::uint64_t stride, std::uint64_t packed) {
      return stride > 0 ? stride : packed;
    };
    return {.q = or_packed(strides.q, q_columns()),
            .k = or_packed(strides.k, kv_columns()),
            .v = or_packed(strides.v, kv_columns()),
            .out = or_packed(strides.out, q_columns()),
            .q_gradient = or_packed(strides.q_gradient, q_columns()),
            .k_gradient = or_packed(strides.k_gradient, kv_columns()),
            .v_gradient = or_packed(strides.v_gradient, kv_columns())};
  }
};

struct AttentionForwardArguments {
  HeadRows<ConstTensor> q, k, v;
  HeadRows<Tensor> out;
  offload::DeviceSpan<float> log_sum;  ///< [batch, heads, sequence], out: log of the softmax's sum
  Tensor workspace;
};

struct AttentionBackwardArguments {
  HeadRows<ConstTensor> q, k, v, out, out_gradient;
  offload::DeviceSpan<const float> log_sum;
  HeadRows<Tensor> q_gradient, k_gradient, v_gradient;
  Tensor workspace;
};

/// Whether a call's matrices have the rows that its plan was made for.
[[nodiscard]] inline bool keeps_strides(const AttentionShape& shape,
                                        const AttentionForwardArguments& a) {
  const AttentionStrides strides = shape.row_strides();
  return a.q.stride == strides.q && a.k.stride == strides.k && a.v.stride == strides.v &&
         a.out.stride == strides.out;
}
[[nodiscard]] inline bool keeps_strides(const AttentionShape& shape,
                                        const AttentionBackwardArguments& a) {
  const AttentionStrides strides = shape.row_strides();
  return a.q.stride == strides.q && a.k.stride == strides.k && a.v.stride == strides.v &&
         a.out.stride == strides.out && a.out_gradient.stride == strides.out &&
         a.q_gradient.stride == strides.q_gradient && a.k_gradient.stride == strides.k_gradient &&
         a.v_gradient.stride == strides.v_gradient;
}

class Ops {
 public:
  virtual ~Ops() = default;
  [[nodiscard]] virtual DType compute() const = 0;
  /// Sets where a device's operations are launched from now on: an offload::Stream::native().
  /// Called once, before the first operation; an implementation without streams ignores it.
  virtual void bind_stream(void* /*native*/) {}

  [[nodiscard]] virtual GemmPlan plan_gemm(const GemmShape& shape) = 0;
  [[nodiscard]] virtual AttentionPlan plan_attention(const AttentionShape& shape) = 0;
  /// Bytes that a call that sums `rows` rows of `columns` elements needs.
  [[nodiscard]] virtual Bytes reduction_workspace(std::uint64_t rows,
                                                  std::uint64_t columns) const = 0;
  /// Bytes that `embedding_backward` needs.
  [[nodiscard]] virtual Bytes embedding_workspace(const EmbeddingShape& shape) const = 0;
  /// Bounds the fp32 logits that the head computes at once, part of the mathematics: as many tokens
  /// as fill a gemm, which for each chunk reads the projection and adds to its gradient once.
  [[nodiscard]] virtual Bytes logits_at_once() const { return Bytes{32ULL << 20}; }

  /// Returns how many elements lie from one row of logits, or of their gradient, to the next:
  /// `columns`, or more where a device reads rows faster that begin at certain addresses. No
  /// operation reads what lies between.
  [[nodiscard]] virtual std::uint64_t logits_stride(std::uint64_t columns) const { return columns; }

  virtual void gemm(GemmPlan plan, const GemmArguments& arguments) = 0;
  virtual void attention_forward(AttentionPlan plan,
                                 const AttentionForwardArguments& arguments) = 0;
  virtual void attention_backward(AttentionPlan plan,
                                  const AttentionBackwardArguments& arguments) = 0;
  /// Runs any of the others.
  virtual void run(const RowOp& op) = 0;

  void norm_forward(const NormShape& shape, const NormForwardArguments& arguments) {
    run(NormForwardOp{shape, arguments});
  }
  void norm_backward(const NormShape& shape, const NormBackwardArguments& arguments) {
    run(NormBackwardOp{shape, arguments});
  }
  void rope(const RopeArguments& arguments) { run(arguments); }
  void activation_forward(const ActivationShape& shape, ConstTensor input, Tensor out) {
    run(ActivationForwardOp{shape, input, out});
  }
  void activation_backward(const ActivationShape& shape,
                           const ActivationBackwardArguments& arguments) {
    run(ActivationBackwardOp{shape, arguments});
  }
  void embedding_forward(const EmbeddingShape& shape, Tokens tokens, ConstTensor table,
                         ConstTensor positions, Tensor out) {
    run(EmbeddingForwardOp{shape, tokens, table, positions, out});
  }
  void embedding_backward(const EmbeddingShape& shape, Tokens tokens, ConstTensor out_gradient,
                          Gradient table, Gradient positions, Tensor workspace) {
    run(EmbeddingBackwardOp{shape, tokens, out_gradient, table, positions, workspace});
  }
  void cross_entropy(const CrossEntropyArguments& arguments) { run(arguments); }
  void scan_vocabulary(const VocabularyTile& tile, offload::DeviceSpan<VocabularyScan> scans,
                       bool first) {
    run(ScanVocabularyOp{tile, scans, first});
  }
  void merge_scans(offload::DeviceSpan<const VocabularyScan> parts,
                   offload::DeviceSpan<VocabularyScan> scans) {
    run(MergeScansOp{parts, scans});
  }
  void sum_losses(Tokens targets, offload::DeviceSpan<const VocabularyScan> scans,
                  offload::DeviceSpan<double> loss_sum, Tensor workspace) {
    run(SumLossesOp{targets, scans, loss_sum, workspace});
  }
  void vocabulary_gradient(const VocabularyTile& tile,
                           offload::DeviceSpan<const VocabularyScan> scans, float gradient_scale,
                           Tensor logits_gradient) {
    run(VocabularyGradientOp{tile, scans, gradient_scale, logits_gradient});
  }
  void bias_gradient(std::uint64_t rows, HeadRows<ConstTensor> out_gradient, Gradient gradient,
                     Tensor workspace) {
    run(BiasGradientOp{rows, out_gradient, gradient, workspace});
  }
  void fill_zero(offload::DeviceSpan<float> values) { run(FillZeroOp{values}); }
  void round_sums(offload::DeviceSpan<const float> sums, Tensor out) {
    run(RoundSumsOp{sums, out});
  }
};

}  // namespace spillway::model
