// The vector kernels of the host Ops: one table of functions for each instruction set and element
// type. Every kernel works on a range of rows or tasks, so that the caller deals ranges to threads.
// Plain pointers: below this line memory is the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/model/host/element.hpp"
#include "runtime/model/ops.hpp"

namespace spillway::model::host {

template <class T>
struct Heads {
  T* data = nullptr;
  std::size_t stride = 0;  ///< elements from a token to the next
};

template <class T>
struct NormCall {
  Heads<const T> input;
  const T* weight = nullptr;
  const T* bias = nullptr;
  Heads<T> out;
  Heads<const T> out_gradient;
  Heads<const T> residual_gradient;
  Heads<T> input_gradient;
  float* statistics = nullptr;
  float* weight_partial = nullptr;  ///< [width] of one chunk of rows, overwritten
  float* bias_partial = nullptr;    ///< likewise, or null
  NormKind kind = NormKind::layer;
  std::size_t heads = 1;
  std::size_t width = 0;
  float eps = 0;
};

template <class T>
struct AttentionCall {
  Heads<const T> q, k, v, out_read, out_gradient;
  Heads<T> out, q_gradient, k_gradient, v_gradient;
  float* log_sum = nullptr;
  AttentionShape shape;
};

template <class T>
struct CrossEntropyCall {
  const float* logits = nullptr;
  const std::int32_t* targets = nullptr;
  T* gradient = nullptr;
  double* losses = nullptr;  ///< [rows]
  std::size_t vocabulary = 0;
  std::size_t stride = 0;  ///< of rows of logits and gradient
  float scale = 0;
};

template <class T>
struct VocabularyCall {
  const float* logits = nullptr;  ///< [rows, columns]
  const std::int32_t* targets = nullptr;
  VocabularyScan* scans = nullptr;
  T* gradient = nullptr;
  std::size_t columns = 0;
  std::size_t stride = 0;  ///< of rows of logits and gradient
  std::size_t first_column = 0;
  bool first = false;  ///< scans are overwritten
  float scale = 0;
};

/// Rows of queries that attention handles at a time; a row of scores spans all keys.
inline constexpr std::size_t kQueryRows = 32;
/// Columns of padded score rows beyond the keys, which keep rows from sharing cache sets.
inline constexpr std::size_t kScorePadding = 16;

struct AttentionScratch {
  std::size_t keys;   ///< sequence, padded to the query rows
  std::size_t width;  ///< head_dim, padded to a vector
  explicit constexpr AttentionScratch(const AttentionShape& shape)
      : keys(round_up(shape.sequence, kQueryRows)), width(round_up(shape.head_dim, 16)) {}
  [[nodiscard]] constexpr std::size_t score_stride() const { return keys + kScorePadding; }
  /// Floats that one task of the forward pass needs, and one of the backward pass.
  [[nodiscard]] constexpr std::size_t forward_floats() const {
    return width * score_stride() + keys * width + kQueryRows * (2 * width + score_stride());
  }
  [[nodiscard]] constexpr std::size_t backward_floats() const {
    return 2 * width * score_stride() + 3 * keys * width +
           kQueryRows * (3 * width + 2 * score_stride() + 2);
  }
};

template <class T>
struct KernelTable {
  void (*norm_forward)(const NormCall<T>& call, std::size_t first, std::size_t last);
  void (*norm_backward)(const NormCall<T>& call, std::size_t first, std::size_t last);
  /// Takes task (batch, kv_head): all query heads that read this key/value head.
  void (*attention_forward)(const AttentionCall<T>& call, std::size_t task, float* scratch);
  void (*attention_backward)(const AttentionCall<T>& call, std::size_t task, float* scratch);
  /// Work on `count` elements (gelu), or on rows of gate | up (gated).
  void (*gelu_forward)(Activation kind, const T* input, T* out, std::size_t count);
  void (*gelu_backward)(Activation kind, const T* input, const T* out_gradient, T* input_gradient,
                        T* out, std::size_t count);
  void (*gated_forward)(const T* input, T* out, std::size_t rows, std::size_t columns);
  void (*gated_backward)(const T* input, const T* out_gradient, T* input_gradient, T* out,
                         std::size_t rows, std::size_t columns);
  /// Makes x = x * cosine + rotate_half(x) * sine, with the cosines and sines of its position.
  void (*rotate)(T* head, const float* cosine, const float* sine, float direction,
                 std::size_t half);
  void (*add_rows)(const T* a, const T* b, T* out, std::size_t count);
  /// Makes target[i] += source[i].
  void (*accumulate)(float* target, const T* source, std::size_t count);
  /// Makes out[c] = sum over rows of input[row * stride + c].
  void (*column_sum)(const T* input, std::size_t stride, std::size_t rows, std::size_t columns,
                     float* out);
  void (*cross_entropy)(const CrossEntropyCall<T>& call, std::size_t first, std::size_t last);
  /// Run Ops::scan_vocabulary and Ops::vocabulary_gradient.
  void (*scan_vocabulary)(const VocabularyCall<T>& call, std::size_t first, std::size_t last);
  void (*vocabulary_gradient)(const VocabularyCall<T>& call, std::size_t first, std::size_t last);
  void (*widen)(const T* input, float* out, std::size_t count);
  void (*narrow)(const float* input, T* out, std::size_t count);
};

struct Kernels {
  std::string_view name;
  bool (*supported)();
  KernelTable<float> fp32;
  KernelTable<Bf16> bf16;
  KernelTable<Fp16> fp16;
};

/// Returns all, the best first; the last, "portable", runs everywhere. All give the same bits.
[[nodiscard]] std::span<const Kernels* const> all_kernels();
/// Returns the first supported, or the one called `name`; throws `Error{not_supported |
/// invalid_argument}`.
[[nodiscard]] const Kernels& choose_kernels(std::string_view name);

extern const Kernels kPortableKernels;
#ifdef __x86_64__
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace spillway::model::host
