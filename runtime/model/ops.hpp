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
#include <span>

#include "offload/device_span.hpp"
#include "runtime/base/dtype.hpp"
#include "runtime/base/units.hpp"
#include "runtime/model/model_config.hpp"

namespace spillway::model {

using Tensor = offload::DeviceSpan<std::byte>;             ///< elements of C, written
using ConstTensor = offload::DeviceSpan<const std::byte>;  ///< elements of C, read
using Tokens = offload::DeviceSpan<const std::int32_t>;

/// A gradient of a parameter: fp32, overwritten by the first micro-batch, added to by the others.
struct Gradient {
  offload::DeviceSpan<float> values;
  bool first = false;
};

// --- matmul: out [rows, columns] = op(a) [rows, inner] x op(b) [inner, columns] (+ bias) (+
// residual)

enum class MatmulOutput : std::uint8_t {
  compute,   ///< C
  fp32,      ///< fp32, overwritten (logits)
  gradient,  ///< fp32, overwritten or added to, as `Gradient::first` says
};

struct MatmulShape {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t inner = 0;
  bool transpose_a = false;  ///< a is stored [inner, rows]
  bool transpose_b = false;  ///< b is stored [columns, inner]
  bool bias = false;         ///< + bias [columns], C; only with output C
  bool residual = false;     ///< + residual [rows, columns], C; only with output C
  MatmulOutput output = MatmulOutput::compute;
  // Elements from one stored row to the next, where a matrix is a range of another one's columns;
  // 0: rows lie side by side. `residual` is strided as `out`.
  std::uint64_t a_stride = 0;
  std::uint64_t b_stride = 0;
  std::uint64_t out_stride = 0;
  bool operator==(const MatmulShape&) const = default;
};

/// Handle of a prepared operation, and the workspace that a call of it needs.
struct Plan {
  std::uint32_t index = 0;
  Bytes workspace;
};
struct MatmulPlan : Plan {};
struct AttentionPlan : Plan {};

struct MatmulArguments {
  ConstTensor a;
  ConstTensor b;
  ConstTensor bias;
  ConstTensor residual;
  offload::DeviceSpan<std::byte> out;  ///< elements of C, or fp32 as planned; overlaps no input
  bool first = true;                   ///< output `gradient` only: overwrite
  Tensor workspace;
};

// --- attention: causal, grouped-query. Query head h reads key/value head h / (heads / kv_heads).

/// `HeadRows::stride` of every matrix of a call, in elements. 0: nothing but the heads.
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
  /// `strides` with every 0 resolved.
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

/// Heads side by side in the rows of a matrix: head h of token t starts at element
/// t * stride + h * head_dim of `data`.
template <class View>
struct HeadRows {
  View data;
  std::uint64_t stride = 0;
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

// --- normalization of rows of `width` elements

enum class NormKind : std::uint8_t { layer, rms };

/// `tokens * heads` rows; row (t, h) starts at element t * stride + h * width, stride per view.
struct NormShape {
  NormKind kind = NormKind::layer;
  std::uint64_t tokens = 0;
  std::uint64_t heads = 1;
  std::uint64_t width = 0;
  float eps = 1e-5F;
  [[nodiscard]] std::uint64_t rows() const { return tokens * heads; }
};

struct NormForwardArguments {
  HeadRows<ConstTensor> input;
  ConstTensor weight;
  ConstTensor bias;  ///< empty: none
  HeadRows<Tensor> out;
  offload::DeviceSpan<float> statistics;  ///< [rows, 2] mean (0 for rms) and 1/deviation, out
};

struct NormBackwardArguments {
  HeadRows<ConstTensor> input;
  ConstTensor weight;
  HeadRows<ConstTensor> out_gradient;
  offload::DeviceSpan<const float> statistics;  ///< as forward wrote them
  HeadRows<ConstTensor> residual_gradient;      ///< added to the input's gradient; empty: none
  HeadRows<Tensor> input_gradient;              ///< may be one of the gradients read
  Gradient weight_gradient;
  Gradient bias_gradient;  ///< empty: no bias
  Tensor workspace;        ///< reduction_workspace(tokens, 2 * width)
};

// --- rotary position embedding, HF's rotate_half convention

enum class RopeDirection : std::uint8_t { forward, backward };

struct RopeArguments {
  HeadRows<Tensor> heads;  ///< rotated in place
  std::uint64_t tokens = 0;
  std::uint32_t head_count = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t sequence = 0;               ///< position of token t is t % sequence
  offload::DeviceSpan<const float> angles;  ///< [sequence, 2, head_dim / 2] cosines, sines
  RopeDirection direction = RopeDirection::forward;
};

// --- activation. gelu: [rows, columns] -> [rows, columns].
//     silu: input [rows, 2 * columns] = gate | up -> silu(gate) * up.

struct ActivationShape {
  Activation kind = Activation::gelu_tanh;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
};

struct ActivationBackwardArguments {
  ConstTensor input;
  ConstTensor out_gradient;
  Tensor input_gradient;  ///< shaped as input; may be `out_gradient` for gelu
  Tensor out;             ///< the forward result again, which the weight gradient needs
};

// --- embedding

struct EmbeddingShape {
  std::uint32_t batch = 0;
  std::uint32_t sequence = 0;
  std::uint64_t width = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t positions = 0;  ///< rows of the position table, 0: no table
  // The table given holds `rows` of the vocabulary from `first_row`: tokens elsewhere are passed
  // over, and neither their rows of `out` nor any gradient is touched. 0 rows: all.
  std::uint64_t first_row = 0;
  std::uint64_t rows = 0;
};

// --- cross-entropy of one chunk of tokens

struct CrossEntropyArguments {
  std::uint64_t rows = 0;
  std::uint64_t vocabulary = 0;
  offload::DeviceSpan<const float> logits;  ///< [rows, vocabulary]
  Tokens targets;                           ///< [rows]; a negative one is ignored
  offload::DeviceSpan<double> loss_sum;     ///< [1], overwritten by the first chunk, else added to
  bool first = false;
  float gradient_scale = 0;
  Tensor logits_gradient;  ///< [rows, vocabulary] C; empty: none. May be `logits` where C is fp32
  Tensor workspace;        ///< reduction_workspace(rows, 2)
};

// --- cross-entropy over tiles of the vocabulary: every tile is scanned, in order, and the sums
// then
//     give the loss and, tile by tile once more, the gradient.

/// What is known of one token after the tiles scanned so far.
struct VocabularyScan {
  double largest = 0;  ///< logit
  double total = 0;    ///< sum of exp(logit - largest)
  double target = 0;   ///< logit of the target, once its tile was there
};

/// Columns [first_column, first_column + columns) of the vocabulary.
struct VocabularyTile {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t first_column = 0;
  std::uint64_t vocabulary = 0;
  offload::DeviceSpan<const float> logits;  ///< [rows, columns]
  Tokens targets;                           ///< [rows]; a negative one is ignored
};

class Ops {
 public:
  virtual ~Ops() = default;
  [[nodiscard]] virtual DType compute() const = 0;
  /// Where a device's operations are launched from now on: an offload::Stream::native(). Called
  /// once, before the first operation; an implementation without streams ignores it.
  virtual void bind_stream(void* /*native*/) {}

  [[nodiscard]] virtual MatmulPlan plan_matmul(const MatmulShape& shape) = 0;
  [[nodiscard]] virtual AttentionPlan plan_attention(const AttentionShape& shape) = 0;
  /// Of a call that sums `rows` rows of `columns` elements.
  [[nodiscard]] virtual Bytes reduction_workspace(std::uint64_t rows,
                                                  std::uint64_t columns) const = 0;
  /// fp32 logits that the head computes at once, part of the mathematics: as many tokens as fill a
  /// matrix product, which for each chunk reads the projection and adds to its gradient once.
  [[nodiscard]] virtual Bytes logits_at_once() const { return Bytes{32ULL << 20}; }
  /// Of `embedding_backward`.
  [[nodiscard]] virtual Bytes embedding_workspace(const EmbeddingShape& shape) const = 0;

  virtual void matmul(MatmulPlan plan, const MatmulArguments& arguments) = 0;
  virtual void attention_forward(AttentionPlan plan,
                                 const AttentionForwardArguments& arguments) = 0;
  virtual void attention_backward(AttentionPlan plan,
                                  const AttentionBackwardArguments& arguments) = 0;
  virtual void norm_forward(const NormShape& shape, const NormForwardArguments& arguments) = 0;
  virtual void norm_backward(const NormShape& shape, const NormBackwardArguments& arguments) = 0;
  virtual void rope(const RopeArguments& arguments) = 0;
  virtual void activation_forward(const ActivationShape& shape, ConstTensor input, Tensor out) = 0;
  virtual void activation_backward(const ActivationShape& shape,
                                   const ActivationBackwardArguments& arguments) = 0;
  /// out [batch * sequence, width] = table[token] (+ positions[t % sequence]).
  virtual void embedding_forward(const EmbeddingShape& shape, Tokens tokens, ConstTensor table,
                                 ConstTensor positions, Tensor out) = 0;
  virtual void embedding_backward(const EmbeddingShape& shape, Tokens tokens,
                                  ConstTensor out_gradient, Gradient table, Gradient positions,
                                  Tensor workspace) = 0;
  virtual void cross_entropy(const CrossEntropyArguments& arguments) = 0;
  /// Takes a tile into `scans` [rows]; the vocabulary's first tile overwrites them.
  virtual void scan_vocabulary(const VocabularyTile& tile,
                               offload::DeviceSpan<VocabularyScan> scans) = 0;
  /// loss_sum [1] = sum over rows of -log softmax(target), 0 where the target is negative.
  /// `workspace`: reduction_workspace(rows, 2).
  virtual void sum_losses(Tokens targets, offload::DeviceSpan<const VocabularyScan> scans,
                          offload::DeviceSpan<double> loss_sum, Tensor workspace) = 0;
  /// logits_gradient [rows, columns] C = gradient_scale * (softmax - one-hot target), with the
  /// scans of all tiles. May be `logits` where C is fp32.
  virtual void vocabulary_gradient(const VocabularyTile& tile,
                                   offload::DeviceSpan<const VocabularyScan> scans,
                                   float gradient_scale, Tensor logits_gradient) = 0;
  /// gradient[c] (+)= sum over rows of out_gradient[rows, columns]; columns = gradient's size.
  virtual void bias_gradient(std::uint64_t rows, ConstTensor out_gradient, Gradient gradient,
                             Tensor workspace) = 0;
  virtual void fill_zero(offload::DeviceSpan<float> values) = 0;
  /// out = sums, rounded to C: as many elements.
  virtual void round_sums(offload::DeviceSpan<const float> sums, Tensor out) = 0;
};

}  // namespace spillway::model
