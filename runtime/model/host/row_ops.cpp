#include "runtime/model/host/row_ops.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/model/host/parallel.hpp"

namespace spillway::model::host {
namespace {

/// Reductions over rows split the rows into at most 64 chunks, whatever the threads.
std::size_t chunk_rows(std::size_t rows) { return std::max<std::size_t>(32, (rows + 63) / 64); }
std::size_t chunk_count(std::size_t rows) {
  return (rows + chunk_rows(rows) - 1) / chunk_rows(rows);
}

void check_token(Tokens tokens, std::size_t at, std::uint64_t vocabulary, std::string_view what) {
  const std::int32_t token = tokens.address()[at];
  if (token >= 0 && static_cast<std::uint64_t>(token) < vocabulary) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} {} at position {} of the micro-batch is not below the model's "
                          "vocabulary of {}; prepare the data with this model's tokenizer",
                          what, token, at, vocabulary));
}

void check_tokens(Tokens tokens, std::uint64_t vocabulary) {
  for (std::size_t i = 0; i < tokens.size(); ++i) check_token(tokens, i, vocabulary, "token");
}

/// Targets may be negative: such a one is ignored.
void check_targets(Tokens targets, std::uint64_t vocabulary) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets.address()[i] >= 0) check_token(targets, i, vocabulary, "target");
  }
}

/// The rows of the vocabulary that an embedding's table has.
struct Rows {
  explicit Rows(const EmbeddingShape& shape)
      : first(shape.first_row), count(shape.rows > 0 ? shape.rows : shape.vocabulary) {}
  /// Returns the token's row in the table; beyond `count` for a token that is not in it.
  [[nodiscard]] std::size_t of(std::int32_t token) const {
    return static_cast<std::size_t>(token) - first;
  }
  std::size_t first, count;
};

}  // namespace

template <class T>
Bytes RowOps<T>::reduction_workspace(std::uint64_t rows, std::uint64_t columns) const {
  const std::uint64_t partial = chunk_count(rows) * columns * sizeof(float);
  return Bytes{std::max(align_bytes(partial), align_bytes(rows * sizeof(double)))};
}

// --- norm

template <class T>
void RowOps<T>::run_one(const NormForwardOp& op) {
  const NormShape& shape = op.shape;
  const NormForwardArguments& a = op.arguments;
  NormCall<T> call;
  call.input = heads<T>(a.input);
  call.weight = cast(a.weight);
  call.bias = a.bias.empty() ? nullptr : cast(a.bias);
  call.out = heads<T>(a.out);
  call.statistics = a.statistics.address();
  call.kind = shape.kind;
  call.heads = shape.heads;
  call.width = shape.width;
  call.eps = shape.eps;
  parallel_for(
      threads_, shape.tokens, items_in_unit(shape.heads * shape.width),
      [&](std::size_t first, std::size_t last, int) { table_.norm_forward(call, first, last); });
}

template <class T>
void RowOps<T>::run_one(const NormBackwardOp& op) {
  const NormShape& shape = op.shape;
  const NormBackwardArguments& a = op.arguments;
  NormCall<T> call;
  call.input = heads<T>(a.input);
  call.weight = cast(a.weight);
  call.out_gradient = heads<T>(a.out_gradient);
  if (!a.residual_gradient.data.empty()) call.residual_gradient = heads<T>(a.residual_gradient);
  call.input_gradient = heads<T>(a.input_gradient);
  call.statistics = const_cast<float*>(a.statistics.address());  // the backward kernel only reads
  call.kind = shape.kind;
  call.heads = shape.heads;
  call.width = shape.width;
  call.eps = shape.eps;
  const std::size_t chunk = chunk_rows(shape.tokens);
  const std::size_t chunks = chunk_count(shape.tokens);
  const bool has_bias = !a.bias_gradient.values.empty();
  auto* partial = reinterpret_cast<float*>(a.workspace.address());
  auto* bias_partial = partial + chunks * shape.width;
  SPILLWAY_ASSERT(a.workspace.size() >= chunks * shape.width * 4 * (has_bias ? 2 : 1));
  parallel_for(threads_, chunks, items_in_unit(chunk * shape.heads * shape.width),
               [&](std::size_t first, std::size_t last, int) {
                 for (std::size_t i = first; i < last; ++i) {
                   NormCall<T> part = call;
                   part.weight_partial = partial + i * shape.width;
                   part.bias_partial = has_bias ? bias_partial + i * shape.width : nullptr;
                   table_.norm_backward(part, i * chunk,
                                        std::min<std::size_t>(shape.tokens, (i + 1) * chunk));
                 }
               });
  sum_partials(partial, chunks, a.weight_gradient);
  if (has_bias) sum_partials(bias_partial, chunks, a.bias_gradient);
}

/// Makes gradient (+)= sum of `chunks` rows, in order.
template <class T>
void RowOps<T>::sum_partials(const float* partials, std::size_t chunks, Gradient gradient) {
  const std::size_t columns = gradient.values.size();
  parallel_for(threads_, columns, std::max<std::size_t>(64, items_in_unit(chunks)),
               [&](std::size_t first, std::size_t last, int) {
                 float* out = gradient.values.address();
                 for (std::size_t c = first; c < last; ++c) {
                   float total = 0;
                   for (std::size_t i = 0; i < chunks; ++i) total += partials[i * columns + c];
                   out[c] = gradient.first ? total : out[c] + total;
                 }
               });
}

template <class T>
void RowOps<T>::run_one(const BiasGradientOp& op) {
  const std::size_t rows = op.rows;
  const std::size_t columns = op.gradient.values.size();
  const std::size_t chunk = chunk_rows(rows);
  const std::size_t chunks = chunk_count(rows);
  SPILLWAY_ASSERT(op.workspace.size() >= chunks * columns * sizeof(float));
  auto* partial = reinterpret_cast<float*>(op.workspace.address());
  const T* input = cast(op.out_gradient.data);
  const std::size_t stride = op.out_gradient.stride;
  parallel_for(threads_, chunks, items_in_unit(chunk * columns),
               [&](std::size_t first, std::size_t last, int) {
                 for (std::size_t i = first; i < last; ++i) {
                   const std::size_t count =
                       std::min<std::size_t>(rows, (i + 1) * chunk) - i * chunk;
                   table_.column_sum(input + i * chunk * stride, stride, count, columns,
                                     partial + i * columns);
                 }
               });
  sum_partials(partial, chunks, op.gradient);
}

// --- rope

template <class T>
void RowOps<T>::run_one(const RopeArguments& a) {
  const std::size_t half = a.head_dim / 2;
  SPILLWAY_ASSERT(a.head_dim % 2 == 0 && a.angles.size() == std::size_t{a.sequence} * a.head_dim);
  const Heads<T> view = heads<T>(a.heads);
  const float direction = a.direction == RopeDirection::forward ? 1.0F : -1.0F;
  parallel_for(threads_, a.tokens, items_in_unit(std::size_t{a.head_count} * a.head_dim),
               [&](std::size_t first, std::size_t last, int) {
                 for (std::size_t token = first; token < last; ++token) {
                   const float* cosine =
                       a.angles.address() + token % a.sequence * std::size_t{a.head_dim};
                   for (std::size_t head = 0; head < a.head_count; ++head) {
                     table_.rotate(view.data + token * view.stride + head * a.head_dim, cosine,
                                   cosine + half, direction, half);
                   }
                 }
               });
}

// --- activation

template <class T>
void RowOps<T>::run_one(const ActivationForwardOp& op) {
  const ActivationShape& shape = op.shape;
  const T* x = cast(op.input);
  T* y = cast(op.out);
  if (shape.kind == Activation::silu) {
    const std::size_t columns = shape.columns;
    parallel_for(threads_, shape.rows, items_in_unit(columns),
                 [&](std::size_t first, std::size_t last, int) {
                   table_.gated_forward(x + first * 2 * columns, y + first * columns, last - first,
                                        columns);
                 });
    return;
  }
  parallel_for(threads_, shape.rows * shape.columns, kUnit,
               [&](std::size_t first, std::size_t last, int) {
                 table_.gelu_forward(shape.kind, x + first, y + first, last - first);
               });
}

template <class T>
void RowOps<T>::run_one(const ActivationBackwardOp& op) {
  const ActivationShape& shape = op.shape;
  const ActivationBackwardArguments& a = op.arguments;
  const T* x = cast(a.input);
  const T* dy = cast(a.out_gradient);
  T* dx = cast(a.input_gradient);
  T* y = cast(a.out);
  if (shape.kind == Activation::silu) {
    const std::size_t columns = shape.columns;
    parallel_for(threads_, shape.rows, items_in_unit(columns),
                 [&](std::size_t first, std::size_t last, int) {
                   table_.gated_backward(x + first * 2 * columns, dy + first * columns,
                                         dx + first * 2 * columns, y + first * columns,
                                         last - first, columns);
                 });
    return;
  }
  parallel_for(threads_, shape.rows * shape.columns, kUnit,
               [&](std::size_t first, std::size_t last, int) {
                 table_.gelu_backward(shape.kind, x + first, dy + first, dx + first, y + first,
                                      last - first);
               });
}

// --- embedding, loss, zeros

template <class T>
void RowOps<T>::run_one(const EmbeddingForwardOp& op) {
  const EmbeddingShape& shape = op.shape;
  const Tokens tokens = op.tokens;
  check_tokens(tokens, shape.vocabulary);
  const Rows rows(shape);
  const std::size_t width = shape.width;
  const T* words = cast(op.table);
  const T* places = shape.positions > 0 ? cast(op.positions) : nullptr;
  T* y = cast(op.out);
  parallel_for(
      threads_, tokens.size(), items_in_unit(width), [&](std::size_t first, std::size_t last, int) {
        for (std::size_t t = first; t < last; ++t) {
          const std::size_t row = rows.of(tokens.address()[t]);
          if (row >= rows.count) continue;
          const T* word = words + row * width;
          if (places == nullptr) {
            std::copy(word, word + width, y + t * width);
          } else {
            table_.add_rows(word, places + t % shape.sequence * width, y + t * width, width);
          }
        }
      });
}

/// Each thread owns a range of columns and adds the tokens in order.
template <class T>
void RowOps<T>::run_one(const EmbeddingBackwardOp& op) {
  const EmbeddingShape& shape = op.shape;
  const Tokens tokens = op.tokens;
  const Gradient& table = op.table;
  const Gradient& positions = op.positions;
  check_tokens(tokens, shape.vocabulary);
  if (table.first) run_one(FillZeroOp{table.values});
  const bool has_positions = shape.positions > 0;
  if (has_positions && positions.first) run_one(FillZeroOp{positions.values});
  const Rows rows(shape);
  const std::uint64_t padding = shape.padding.value_or(shape.vocabulary);  // beyond all tokens
  const std::size_t width = shape.width;
  const T* dy = cast(op.out_gradient);
  parallel_for(threads_, width, std::max<std::size_t>(64, items_in_unit(tokens.size())),
               [&](std::size_t first, std::size_t last, int) {
                 for (std::size_t t = 0; t < tokens.size(); ++t) {
                   const std::int32_t token = tokens.address()[t];
                   const std::size_t row = rows.of(token);
                   const T* source = dy + t * width + first;
                   if (row < rows.count && std::cmp_not_equal(token, padding)) {
                     table_.accumulate(table.values.address() + row * width + first, source,
                                       last - first);
                   }
                   if (has_positions) {
                     const std::size_t place = t % shape.sequence;
                     table_.accumulate(positions.values.address() + place * width + first, source,
                                       last - first);
                   }
                 }
               });
}

template <class T>
void RowOps<T>::run_one(const CrossEntropyArguments& a) {
  check_targets(a.targets, a.vocabulary);
  SPILLWAY_ASSERT(a.workspace.size() >= a.rows * sizeof(double));
  CrossEntropyCall<T> call;
  call.logits = a.logits.address();
  call.targets = a.targets.address();
  call.gradient = a.logits_gradient.empty() ? nullptr : cast(a.logits_gradient);
  call.losses = reinterpret_cast<double*>(a.workspace.address());
  call.vocabulary = a.vocabulary;
  call.stride = a.row_stride();
  call.scale = a.gradient_scale;
  parallel_for(
      threads_, a.rows, items_in_unit(a.vocabulary),
      [&](std::size_t first, std::size_t last, int) { table_.cross_entropy(call, first, last); });
  double total = a.first ? 0.0 : *a.loss_sum.address();
  for (std::size_t row = 0; row < a.rows; ++row) total += call.losses[row];
  *a.loss_sum.address() = total;
}

template <class T>
void RowOps<T>::run_one(const ScanVocabularyOp& op) {
  const VocabularyTile& tile = op.tile;
  check_targets(tile.targets, tile.vocabulary);
  SPILLWAY_ASSERT(op.scans.size() >= tile.rows);
  VocabularyCall<T> call;
  call.logits = tile.logits.address();
  call.targets = tile.targets.address();
  call.scans = op.scans.address();
  call.columns = tile.columns;
  call.stride = tile.row_stride();
  call.first_column = tile.first_column;
  call.first = op.first;
  parallel_for(
      threads_, tile.rows, items_in_unit(tile.columns),
      [&](std::size_t first, std::size_t last, int) { table_.scan_vocabulary(call, first, last); });
}

template <class T>
void RowOps<T>::run_one(const MergeScansOp& op) {
  const std::size_t rows = op.scans.size();
  SPILLWAY_ASSERT(op.parts.size() % rows == 0);
  for (std::size_t row = 0; row < rows; ++row) {
    VocabularyScan scan = op.parts.address()[row];
    for (std::size_t at = row + rows; at < op.parts.size(); at += rows) {
      scan = merged(scan, op.parts.address()[at]);
    }
    op.scans.address()[row] = scan;
  }
}

template <class T>
void RowOps<T>::run_one(const SumLossesOp& op) {
  double total = 0;
  for (std::size_t row = 0; row < op.targets.size(); ++row) {
    if (op.targets.address()[row] < 0) continue;
    const VocabularyScan& scan = op.scans.address()[row];
    total += std::log(scan.total) + scan.largest - scan.target;
  }
  *op.loss_sum.address() = total;
}

template <class T>
void RowOps<T>::run_one(const VocabularyGradientOp& op) {
  const VocabularyTile& tile = op.tile;
  VocabularyCall<T> call;
  call.logits = tile.logits.address();
  call.targets = tile.targets.address();
  call.scans = const_cast<VocabularyScan*>(op.scans.address());  // the kernel only reads them
  call.gradient = cast(op.logits_gradient);
  call.columns = tile.columns;
  call.stride = tile.row_stride();
  call.first_column = tile.first_column;
  call.scale = op.gradient_scale;
  parallel_for(threads_, tile.rows, items_in_unit(tile.columns),
               [&](std::size_t first, std::size_t last, int) {
                 table_.vocabulary_gradient(call, first, last);
               });
}

template <class T>
void RowOps<T>::run_one(const RoundSumsOp& op) {
  SPILLWAY_ASSERT(op.out.size() == op.sums.size() * sizeof(T));
  parallel_for(threads_, op.sums.size(), kUnit, [&](std::size_t first, std::size_t last, int) {
    table_.narrow(op.sums.address() + first, cast(op.out) + first, last - first);
  });
}

template <class T>
void RowOps<T>::run_one(const FillZeroOp& op) {
  float* values = op.values.address();
  parallel_for(threads_, op.values.size(), kUnit, [&](std::size_t first, std::size_t last, int) {
    std::fill(values + first, values + last, 0.0F);
  });
}

template class RowOps<float>;
template class RowOps<Bf16>;
template class RowOps<Fp16>;

}  // namespace spillway::model::host
