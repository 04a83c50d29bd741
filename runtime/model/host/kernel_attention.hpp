// Causal attention of one (batch, key/value head) in fp32, a block of query rows at a time with a
// row of scores for each. See kernel_math.hpp for how this file is compiled.
#pragma once

#include "runtime/model/host/kernel_math.hpp"

namespace spillway::model::host::SPILLWAY_SIMD {

inline constexpr std::size_t kTileRows = 4;

/// Makes c [4, vectors * 16] (+)= a [4, inner] x b [inner, ...].
template <std::size_t vectors>
inline void multiply_tile(std::size_t inner, const float* a, std::size_t a_row,
                          std::size_t a_column, const float* b, std::size_t b_stride, float* c,
                          std::size_t c_stride, bool add) {
  F total[kTileRows][vectors];
#pragma GCC unroll 4
  for (std::size_t r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (std::size_t v = 0; v < vectors; ++v) {
      total[r][v] = add ? load(c + r * c_stride + v * kLanes) : set(0);
    }
  }
  for (std::size_t p = 0; p < inner; ++p) {
    F row[vectors];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < vectors; ++v) row[v] = load(b + p * b_stride + v * kLanes);
#pragma GCC unroll 4
    for (std::size_t r = 0; r < kTileRows; ++r) {
      const F x = set(a[r * a_row + p * a_column]);
#pragma GCC unroll 4
      for (std::size_t v = 0; v < vectors; ++v) total[r][v] = fma(x, row[v], total[r][v]);
    }
  }
#pragma GCC unroll 4
  for (std::size_t r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (std::size_t v = 0; v < vectors; ++v) store(c + r * c_stride + v * kLanes, total[r][v]);
  }
}

struct Gemm {
  std::size_t rows;     ///< multiple of kTileRows
  std::size_t columns;  ///< multiple of kLanes
  std::size_t inner;
  const float* a;
  std::size_t a_row, a_column;  ///< element (i, p) of a is a[i * a_row + p * a_column]
  const float* b;
  std::size_t b_stride;
  float* c;
  std::size_t c_stride;
  bool add;
};

template <std::size_t vectors>
inline void multiply_columns(const Gemm& m, std::size_t column) {
  for (std::size_t i = 0; i < m.rows; i += kTileRows) {
    multiply_tile<vectors>(m.inner, m.a + i * m.a_row, m.a_row, m.a_column, m.b + column,
                           m.b_stride, m.c + i * m.c_stride + column, m.c_stride, m.add);
  }
}

inline void multiply(const Gemm& m) {
  std::size_t column = 0;
  for (; column + kTileVectors * kLanes <= m.columns; column += kTileVectors * kLanes) {
    multiply_columns<kTileVectors>(m, column);
  }
  for (; column < m.columns; column += kLanes) multiply_columns<1>(m, column);
}

/// Widens rows [first, first + rows) of one head into out [padded_rows, width], zero-padded.
template <class T>
void pack_rows(const Heads<const T>& view, std::size_t head_offset, std::size_t first,
               std::size_t rows, std::size_t padded_rows, std::size_t dim, std::size_t width,
               float* out) {
  for (std::size_t row = 0; row < padded_rows; ++row) {
    float* y = out + row * width;
    if (row >= rows) {
      for (std::size_t i = 0; i < width; i += kLanes) store(y + i, set(0));
      continue;
    }
    const T* x = view.data + (first + row) * view.stride + head_offset;
    for (std::size_t i = 0; i < width; i += kLanes) {
      store(y + i, dim - i >= kLanes ? load(x + i) : load_part(x + i, dim - i));
    }
  }
}

/// Makes out [width, stride] = in [keys, width] transposed.
inline void transpose(const float* in, std::size_t keys, std::size_t width, float* out,
                      std::size_t stride) {
  for (std::size_t key = 0; key < keys; key += kLanes) {
    for (std::size_t i = 0; i < width; ++i) {
      float* y = out + i * stride + key;
      for (std::size_t k = 0; k < kLanes; ++k) y[k] = in[(key + k) * width + i];
    }
  }
}

template <class T>
void write_row(const float* x, float factor, T* out, std::size_t dim) {
  for (std::size_t i = 0; i < dim; i += kLanes) {
    const std::size_t rest = dim - i;
    if (rest >= kLanes) {
      store(out + i, load(x + i) * set(factor));
    } else {
      store_part(out + i, load_part(x + i, rest) * set(factor), rest);
    }
  }
}

/// Turns `valid` scores of a row into exp(scale * (score - largest)), zeroes up to `columns`, and
/// returns the largest score and the sum.
struct Softmax {
  float largest, total;
};
inline Softmax exponentiate_row(float* x, std::size_t valid, std::size_t columns, float scale) {
  F top = set(x[0]);
  std::size_t i = 0;
  for (; i + kLanes <= valid; i += kLanes) top = max(top, load(x + i));
  if (i < valid) top = max(top, load_part(x + i, valid - i, x[0]));
  const float maximum = largest(top);
  const F shift = set(maximum);
  const F factor = set(scale);
  F total = set(0);
  for (i = 0; i + kLanes <= valid; i += kLanes) {
    const F p = exponential((load(x + i) - shift) * factor);
    store(x + i, p);
    total = total + p;
  }
  if (const std::size_t rest = valid - i; rest > 0) {
    F p = exponential((load(x + i) - shift) * factor);
    store(x + i, set(0));
    store_part(x + i, p, rest);
    total = total + load(x + i);
    i += kLanes;
  }
  for (; i < columns; i += kLanes) store(x + i, set(0));
  return {maximum, sum(total)};
}

/// The place of one task in the batch, and the sizes that its loops use.
struct TaskShape {
  std::size_t batch, kv_head, group, first_token, sequence, dim, width, keys, stride;
  float scale;
  TaskShape(const AttentionShape& s, std::size_t task)
      : batch(task / s.kv_heads),
        kv_head(task % s.kv_heads),
        group(s.heads / s.kv_heads),
        first_token(batch * s.sequence),
        sequence(s.sequence),
        dim(s.head_dim),
        width(AttentionScratch(s).width),
        keys(AttentionScratch(s).keys),
        stride(AttentionScratch(s).score_stride()),
        scale(static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(s.head_dim)))) {}
};

template <class T>
void attention_forward(const AttentionCall<T>& c, std::size_t task, float* scratch) {
  const TaskShape s(c.shape, task);
  float* k_transposed = scratch;
  float* v = k_transposed + s.width * s.stride;
  float* q = v + s.keys * s.width;
  float* out = q + kQueryRows * s.width;
  float* scores = out + kQueryRows * s.width;
  const std::size_t kv_offset = s.kv_head * s.dim;
  pack_rows(c.k, kv_offset, s.first_token, s.sequence, s.keys, s.dim, s.width, v);
  transpose(v, s.keys, s.width, k_transposed, s.stride);
  pack_rows(c.v, kv_offset, s.first_token, s.sequence, s.keys, s.dim, s.width, v);
  for (std::size_t g = 0; g < s.group; ++g) {
    const std::size_t head = s.kv_head * s.group + g;
    float* log_sum = c.log_sum + (s.batch * c.shape.heads + head) * s.sequence;
    for (std::size_t first = 0; first < s.sequence; first += kQueryRows) {
      const std::size_t rows = s.sequence - first < kQueryRows ? s.sequence - first : kQueryRows;
      const std::size_t columns = first + kQueryRows;  // causal: no key beyond the block's last row
      pack_rows(c.q, head * s.dim, s.first_token + first, rows, kQueryRows, s.dim, s.width, q);
      multiply({kQueryRows, columns, s.width, q, s.width, 1, k_transposed, s.stride, scores,
                s.stride, false});
      float inverse[kQueryRows];
      for (std::size_t r = 0; r < kQueryRows; ++r) {
        float* row = scores + r * s.stride;
        const Softmax p = exponentiate_row(row, r < rows ? first + r + 1 : 1, columns, s.scale);
        inverse[r] = 1.0F / p.total;
        if (r < rows) log_sum[first + r] = p.largest * s.scale + __builtin_logf(p.total);
      }
      multiply(
          {kQueryRows, s.width, columns, scores, s.stride, 1, v, s.width, out, s.width, false});
      for (std::size_t r = 0; r < rows; ++r) {
        T* target = c.out.data + (s.first_token + first + r) * c.out.stride + head * s.dim;
        write_row(out + r * s.width, inverse[r], target, s.dim);
      }
    }
  }
}

/// Scratch of one backward task.
struct BackwardScratch {
  float *k_transposed, *v_transposed, *k, *dk, *dv, *q, *d_out, *dq, *scores, *d_scores, *delta;
  BackwardScratch(float* p, const TaskShape& s) {
    const auto take = [&p](std::size_t count) {
      float* first = p;
      p += count;
      return first;
    };
    k_transposed = take(s.width * s.stride);
    v_transposed = take(s.width * s.stride);
    k = take(s.keys * s.width);
    dk = take(s.keys * s.width);
    dv = take(s.keys * s.width);
    q = take(kQueryRows * s.width);
    d_out = take(kQueryRows * s.width);
    dq = take(kQueryRows * s.width);
    scores = take(kQueryRows * s.stride);
    d_scores = take(kQueryRows * s.stride);
    delta = take(kQueryRows);
  }
};

/// Turns scores to probabilities, d_scores to the gradient of scores before `scale`, times it.
inline void softmax_backward_row(float* scores, float* d_scores, std::size_t valid,
                                 std::size_t columns, float scale, float log_sum, float delta) {
  const F factor = set(scale);
  const F shift = set(-log_sum);
  const F center = set(delta);
  std::size_t i = 0;
  for (; i + kLanes <= valid; i += kLanes) {
    const F p = exponential(fma(load(scores + i), factor, shift));
    store(scores + i, p);
    store(d_scores + i, p * (load(d_scores + i) - center) * factor);
  }
  if (const std::size_t rest = valid - i; rest > 0) {
    const F p = exponential(fma(load(scores + i), factor, shift));
    const F d = p * (load(d_scores + i) - center) * factor;
    store(scores + i, set(0));
    store_part(scores + i, p, rest);
    store(d_scores + i, set(0));
    store_part(d_scores + i, d, rest);
    i += kLanes;
  }
  for (; i < columns; i += kLanes) {
    store(scores + i, set(0));
    store(d_scores + i, set(0));
  }
}

/// Returns the sum over the head of out * d_out.
template <class T>
float row_product(const T* a, const float* b, std::size_t dim) {
  F total = set(0);
  for (std::size_t i = 0; i < dim; i += kLanes) {
    const F x = dim - i >= kLanes ? load(a + i) : load_part(a + i, dim - i);
    total = fma(x, load(b + i), total);
  }
  return sum(total);
}

template <class T>
void backward_block(const AttentionCall<T>& c, const TaskShape& s, const BackwardScratch& b,
                    std::size_t head, std::size_t first) {
  const std::size_t rows = s.sequence - first < kQueryRows ? s.sequence - first : kQueryRows;
  const std::size_t columns = first + kQueryRows;
  const std::size_t offset = head * s.dim;
  const float* log_sum = c.log_sum + (s.batch * c.shape.heads + head) * s.sequence + first;
  pack_rows(c.q, offset, s.first_token + first, rows, kQueryRows, s.dim, s.width, b.q);
  pack_rows(c.out_gradient, offset, s.first_token + first, rows, kQueryRows, s.dim, s.width,
            b.d_out);
  multiply({kQueryRows, columns, s.width, b.q, s.width, 1, b.k_transposed, s.stride, b.scores,
            s.stride, false});
  multiply({kQueryRows, columns, s.width, b.d_out, s.width, 1, b.v_transposed, s.stride, b.d_scores,
            s.stride, false});
  for (std::size_t r = 0; r < kQueryRows; ++r) {
    const bool live = r < rows;
    const T* out = c.out_read.data + (s.first_token + first + r) * c.out_read.stride + offset;
    softmax_backward_row(b.scores + r * s.stride, b.d_scores + r * s.stride,
                         live ? first + r + 1 : 0, columns, s.scale, live ? log_sum[r] : 0,
                         live ? row_product(out, b.d_out + r * s.width, s.dim) : 0);
  }
  multiply(
      {columns, s.width, kQueryRows, b.scores, 1, s.stride, b.d_out, s.width, b.dv, s.width, true});
  multiply(
      {columns, s.width, kQueryRows, b.d_scores, 1, s.stride, b.q, s.width, b.dk, s.width, true});
  multiply(
      {kQueryRows, s.width, columns, b.d_scores, s.stride, 1, b.k, s.width, b.dq, s.width, false});
  for (std::size_t r = 0; r < rows; ++r) {
    T* target = c.q_gradient.data + (s.first_token + first + r) * c.q_gradient.stride + offset;
    write_row(b.dq + r * s.width, 1.0F, target, s.dim);
  }
}

template <class T>
void attention_backward(const AttentionCall<T>& c, std::size_t task, float* scratch) {
  const TaskShape s(c.shape, task);
  const BackwardScratch b(scratch, s);
  const std::size_t kv_offset = s.kv_head * s.dim;
  pack_rows(c.v, kv_offset, s.first_token, s.sequence, s.keys, s.dim, s.width, b.k);
  transpose(b.k, s.keys, s.width, b.v_transposed, s.stride);
  pack_rows(c.k, kv_offset, s.first_token, s.sequence, s.keys, s.dim, s.width, b.k);
  transpose(b.k, s.keys, s.width, b.k_transposed, s.stride);
  for (std::size_t i = 0; i < s.keys * s.width; i += kLanes) {
    store(b.dk + i, set(0));
    store(b.dv + i, set(0));
  }
  for (std::size_t g = 0; g < s.group; ++g) {
    for (std::size_t first = 0; first < s.sequence; first += kQueryRows) {
      backward_block(c, s, b, s.kv_head * s.group + g, first);
    }
  }
  for (std::size_t row = 0; row < s.sequence; ++row) {
    const std::size_t token = s.first_token + row;
    write_row(b.dk + row * s.width, 1.0F,
              c.k_gradient.data + token * c.k_gradient.stride + kv_offset, s.dim);
    write_row(b.dv + row * s.width, 1.0F,
              c.v_gradient.data + token * c.v_gradient.stride + kv_offset, s.dim);
  }
}

}  // namespace spillway::model::host::SPILLWAY_SIMD
