// Embedding and its gradient. Each row of the table's gradient has one owner, which adds the rows
// of its token's occurrences in order: the bits are those of the host, and no atomic is needed.
#pragma once

#include <limits>

#include "runtime/model/cuda/kernels/bodies/token_sort.hpp"

namespace spillway::model::cuda::bodies {

constexpr std::uint64_t embedding_bytes(const EmbeddingShape& shape) {
  return round_up(std::uint64_t{shape.batch} * shape.sequence * 2 * sizeof(Occurrence), 64);
}

/// The rows of the vocabulary that a table holds.
struct TableRows {
  std::uint64_t first, count;
};
constexpr TableRows table_rows(const EmbeddingShape& shape) {
  return {shape.first_row, shape.rows > 0 ? shape.rows : shape.vocabulary};
}

/// An item is a pack of a row of `out`.
template <unsigned N, class T>
struct EmbeddingForward {
  const std::int32_t* tokens;
  const T* table;
  const T* positions;  ///< null: none
  T* out;
  std::uint64_t sequence, width, vocabulary;
  TableRows rows;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    const std::uint64_t row = item / (width / N);
    const std::uint64_t column = item % (width / N) * N;
    const auto token = static_cast<std::uint64_t>(tokens[row]);  // a negative one becomes huge
    Pack<N> value = filled<N>(std::numeric_limits<float>::quiet_NaN());
    if (token < vocabulary) {
      const std::uint64_t in_table = token - rows.first;
      if (in_table >= rows.count) return;  // another tile's
      value = load<N>(table + in_table * width + column);
      if (positions != nullptr) {
        value = value + load<N>(positions + row % sequence * width + column);
      }
    }
    store(out + item * N, value);
  }
};

/// An item is (occurrence, pack): the first occurrence of a token adds all, the others nothing.
template <unsigned N, class T>
struct TableGradient {
  const Occurrence* sorted;
  const T* out_gradient;
  float* table;
  std::uint64_t count, width, padding;
  TableRows rows;
  bool first;

  static constexpr unsigned kAhead = 8;  ///< rows in flight, for tokens that are everywhere

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    std::uint64_t i = item / (width / N);
    const std::uint64_t column = item % (width / N) * N;
    const std::uint64_t token = token_of(sorted[i]);
    const std::uint64_t in_table = token - rows.first;  // before the table it becomes huge
    if (in_table >= rows.count || (i > 0 && token_of(sorted[i - 1]) == token)) return;
    if (token == padding) return;
    float* target = table + in_table * width + column;
    Pack<N> total = first ? filled<N>(0) : load<N>(target);
    const T* input = out_gradient + column;
    for (; i + kAhead <= count && token_of(sorted[i + kAhead - 1]) == token; i += kAhead) {
      Pack<N> ahead[kAhead];
      for (unsigned j = 0; j < kAhead; ++j) {
        ahead[j] = load<N>(input + position_of(sorted[i + j]) * width);
      }
      for (unsigned j = 0; j < kAhead; ++j) total = total + ahead[j];
    }
    for (; i < count && token_of(sorted[i]) == token; ++i) {
      total = total + load<N>(input + position_of(sorted[i]) * width);
    }
    store(target, total);
  }
};

/// An item is a pack of a row of the positions' gradient, which adds the windows in order.
template <unsigned N, class T>
struct PositionGradient {
  const T* out_gradient;
  float* positions;
  std::uint64_t batch, sequence, width;
  bool first;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    Pack<N> total = first ? filled<N>(0) : load<N>(positions + item * N);
    for (std::uint64_t window = 0; window < batch; ++window) {
      total = total + load<N>(out_gradient + window * sequence * width + item * N);
    }
    store(positions + item * N, total);
  }
};

template <class Runner>
void run(Runner& runner, DType compute, const EmbeddingForwardOp& op) {
  const EmbeddingShape& shape = op.shape;
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const T* words = elements<T>(op.table);
    const T* places = shape.positions > 0 ? elements<T>(op.positions) : nullptr;
    T* y = elements<T>(op.out);
    with_pack(aligned(words, places, y) && whole_packs(shape.width), [&](auto pack) {
      constexpr unsigned kN = decltype(pack)::value;
      runner.items(EmbeddingForward<kN, T>{op.tokens.address(), words, places, y, shape.sequence,
                                           shape.width, shape.vocabulary, table_rows(shape)},
                   op.tokens.size() * (shape.width / kN));
    });
  });
}

template <class Runner>
void run(Runner& runner, DType compute, const EmbeddingBackwardOp& op) {
  const EmbeddingShape& shape = op.shape;
  const Gradient& table = op.table;
  const Gradient& positions = op.positions;
  const std::uint64_t count = op.tokens.size();
  SPILLWAY_ASSERT(op.workspace.size() >= count * 2 * sizeof(Occurrence) && count <= 0xffffffffU);
  auto* buffer = reinterpret_cast<Occurrence*>(op.workspace.address());
  const TokenSort sort{.tokens = op.tokens.address(),
                       .count = count,
                       .vocabulary = shape.vocabulary,
                       .even = buffer,
                       .odd = buffer + count,
                       .passes = sort_passes(shape.vocabulary)};
  runner.template teams<TokenSort::kLanes>(sort, 1, TokenSort::kShared);
  const bool has_positions = shape.positions > 0;
  const std::uint64_t padding = shape.padding.value_or(shape.vocabulary);  // beyond all tokens
  const std::uint64_t used = std::uint64_t{shape.sequence} * shape.width;
  if (table.first) runner.zero(table.values.address(), table.values.size());
  if (has_positions && positions.first && positions.values.size() > used) {
    runner.zero(positions.values.address() + used, positions.values.size() - used);
  }
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const T* dy = elements<T>(op.out_gradient);
    float* words = table.values.address();
    float* places = has_positions ? positions.values.address() : nullptr;
    with_pack(aligned(dy, words, places) && whole_packs(shape.width), [&](auto pack) {
      constexpr unsigned kN = decltype(pack)::value;
      runner.items(TableGradient<kN, T>{sort.result(), dy, words, count, shape.width, padding,
                                        table_rows(shape), table.first},
                   count * (shape.width / kN));
      if (!has_positions) return;
      runner.items(PositionGradient<kN, T>{dy, places, shape.batch, shape.sequence, shape.width,
                                           positions.first},
                   used / kN);
    });
  });
}

}  // namespace spillway::model::cuda::bodies
