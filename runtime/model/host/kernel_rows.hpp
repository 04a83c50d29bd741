// Kernels on rows: normalization, activation, rope, sums, conversions. See kernel_math.hpp for how
// this file is compiled.
#pragma once

#include "runtime/model/host/kernel_math.hpp"

namespace spillway::model::host::SPILLWAY_SIMD {

/// Calls whole(i) for each full vector of [0, count) and part(i, rest) for the tail.
template <class Whole, class Part>
inline void for_vectors(std::size_t count, Whole whole, Part part) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) whole(i);
  if (i < count) part(i, count - i);
}

struct Moments {
  float mean, inverse;
};

template <class T>
Moments moments(const T* x, std::size_t width, NormKind kind, float eps) {
  const float n = static_cast<float>(width);
  float mean = 0;
  if (kind == NormKind::layer) {
    F total = set(0);
    std::size_t i = 0;
    for (; i + kLanes <= width; i += kLanes) total = total + load(x + i);
    if (i < width) total = total + load_part(x + i, width - i);
    mean = sum(total) / n;
  }
  const F center = set(mean);
  F squares = set(0);
  std::size_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const F d = load(x + i) - center;
    squares = fma(d, d, squares);
  }
  if (i < width) {
    const F d = load_part(x + i, width - i, mean) - center;  // the fill contributes 0
    squares = fma(d, d, squares);
  }
  const double variance = static_cast<double>(sum(squares)) / static_cast<double>(width);
  return {mean, static_cast<float>(1.0 / __builtin_sqrt(variance + static_cast<double>(eps)))};
}

template <class T>
void norm_forward(const NormCall<T>& c, std::size_t first, std::size_t last) {
  for (std::size_t token = first; token < last; ++token) {
    for (std::size_t head = 0; head < c.heads; ++head) {
      const T* x = c.input.data + token * c.input.stride + head * c.width;
      T* y = c.out.data + token * c.out.stride + head * c.width;
      const Moments m = moments(x, c.width, c.kind, c.eps);
      float* statistics = c.statistics + 2 * (token * c.heads + head);
      statistics[0] = m.mean;
      statistics[1] = m.inverse;
      const F mean = set(m.mean);
      const F inverse = set(m.inverse);
      std::size_t i = 0;
      for (; i + kLanes <= c.width; i += kLanes) {
        const F bias = c.bias != nullptr ? load(c.bias + i) : set(0);
        store(y + i, fma((load(x + i) - mean) * inverse, load(c.weight + i), bias));
      }
      if (const std::size_t rest = c.width - i; rest > 0) {
        const F bias = c.bias != nullptr ? load_part(c.bias + i, rest) : set(0);
        const F normal = (load_part(x + i, rest) - mean) * inverse;
        store_part(y + i, fma(normal, load_part(c.weight + i, rest), bias), rest);
      }
    }
  }
}

/// One vector of a row in norm_backward; `rest` is at least kLanes for a full one.
template <class T>
struct NormVector {
  F normal, gradient, weighted;
  NormVector(const NormCall<T>& c, const T* x, const T* dy, Moments m, std::size_t i,
             std::size_t rest) {
    const bool whole = rest >= kLanes;
    const F input = whole ? load(x + i) : load_part(x + i, rest, m.mean);
    normal = (input - set(m.mean)) * set(m.inverse);
    gradient = whole ? load(dy + i) : load_part(dy + i, rest);
    weighted = gradient * (whole ? load(c.weight + i) : load_part(c.weight + i, rest));
  }
};

template <class T>
void norm_backward_row(const NormCall<T>& c, const T* x, const T* dy, const T* residual, T* dx,
                       Moments m) {
  F sum_weighted = set(0);
  F sum_product = set(0);
  for (std::size_t i = 0; i < c.width; i += kLanes) {
    const NormVector<T> v(c, x, dy, m, i, c.width - i);
    if (c.kind == NormKind::layer) sum_weighted = sum_weighted + v.weighted;
    sum_product = fma(v.weighted, v.normal, sum_product);
  }
  const float n = static_cast<float>(c.width);
  const F mean_weighted = set(sum(sum_weighted) / n);
  const F mean_product = set(sum(sum_product) / n);
  const F inverse = set(m.inverse);
  const F minus = set(0);
  for (std::size_t i = 0; i < c.width; i += kLanes) {
    const std::size_t rest = c.width - i;
    const bool whole = rest >= kLanes;
    const NormVector<T> v(c, x, dy, m, i, rest);
    F d = fma(minus - v.normal, mean_product, v.weighted - mean_weighted) * inverse;
    if (residual != nullptr) d = d + (whole ? load(residual + i) : load_part(residual + i, rest));
    float* dw = c.weight_partial + i;
    float* db = c.bias_partial == nullptr ? nullptr : c.bias_partial + i;
    if (whole) {
      store(dx + i, d);
      store(dw, fma(v.gradient, v.normal, load(dw)));
      if (db != nullptr) store(db, v.gradient + load(db));
    } else {
      store_part(dx + i, d, rest);
      store_part(dw, fma(v.gradient, v.normal, load_part(dw, rest)), rest);
      if (db != nullptr) store_part(db, v.gradient + load_part(db, rest), rest);
    }
  }
}

template <class T>
void norm_backward(const NormCall<T>& c, std::size_t first, std::size_t last) {
  for (std::size_t i = 0; i < c.width; ++i) c.weight_partial[i] = 0;
  if (c.bias_partial != nullptr) {
    for (std::size_t i = 0; i < c.width; ++i) c.bias_partial[i] = 0;
  }
  for (std::size_t token = first; token < last; ++token) {
    for (std::size_t head = 0; head < c.heads; ++head) {
      const float* statistics = c.statistics + 2 * (token * c.heads + head);
      const auto at = [&](const auto& view) {
        return view.data + token * view.stride + head * c.width;
      };
      norm_backward_row<T>(c, at(c.input), at(c.out_gradient),
                           c.residual_gradient.data != nullptr ? at(c.residual_gradient) : nullptr,
                           at(c.input_gradient), {statistics[0], statistics[1]});
    }
  }
}

inline Value gelu(Activation kind, F x) {
  return kind == Activation::gelu_tanh ? gelu_tanh(x) : gelu_erf(x);
}

template <class T>
void gelu_forward(Activation kind, const T* input, T* out, std::size_t count) {
  for_vectors(
      count, [&](std::size_t i) { store(out + i, gelu(kind, load(input + i)).value); },
      [&](std::size_t i, std::size_t rest) {
        store_part(out + i, gelu(kind, load_part(input + i, rest)).value, rest);
      });
}

template <class T>
void gelu_backward(Activation kind, const T* input, const T* out_gradient, T* input_gradient,
                   T* out, std::size_t count) {
  for_vectors(
      count,
      [&](std::size_t i) {
        const Value v = gelu(kind, load(input + i));
        store(input_gradient + i, load(out_gradient + i) * v.slope);
        store(out + i, v.value);
      },
      [&](std::size_t i, std::size_t rest) {
        const Value v = gelu(kind, load_part(input + i, rest));
        store_part(input_gradient + i, load_part(out_gradient + i, rest) * v.slope, rest);
        store_part(out + i, v.value, rest);
      });
}

template <class T>
void gated_forward(const T* input, T* out, std::size_t rows, std::size_t columns) {
  for (std::size_t row = 0; row < rows; ++row) {
    const T* gate = input + row * 2 * columns;
    const T* up = gate + columns;
    T* y = out + row * columns;
    for_vectors(
        columns, [&](std::size_t i) { store(y + i, silu(load(gate + i)).value * load(up + i)); },
        [&](std::size_t i, std::size_t rest) {
          const F value = silu(load_part(gate + i, rest)).value;
          store_part(y + i, value * load_part(up + i, rest), rest);
        });
  }
}

template <class T>
void gated_backward(const T* input, const T* out_gradient, T* input_gradient, T* out,
                    std::size_t rows, std::size_t columns) {
  for (std::size_t row = 0; row < rows; ++row) {
    const T* gate = input + row * 2 * columns;
    const T* up = gate + columns;
    const T* dy = out_gradient + row * columns;
    T* d_gate = input_gradient + row * 2 * columns;
    T* d_up = d_gate + columns;
    T* y = out + row * columns;
    for_vectors(
        columns,
        [&](std::size_t i) {
          const Value v = silu(load(gate + i));
          const F u = load(up + i);
          const F d = load(dy + i);
          store(d_gate + i, d * u * v.slope);
          store(d_up + i, d * v.value);
          store(y + i, v.value * u);
        },
        [&](std::size_t i, std::size_t rest) {
          const Value v = silu(load_part(gate + i, rest));
          const F u = load_part(up + i, rest);
          const F d = load_part(dy + i, rest);
          store_part(d_gate + i, d * u * v.slope, rest);
          store_part(d_up + i, d * v.value, rest);
          store_part(y + i, v.value * u, rest);
        });
  }
}

template <class T>
void rotate(T* head, const float* cosine, const float* sine, float direction, std::size_t half) {
  const F sign = set(direction);
  T* upper = head + half;
  for_vectors(
      half,
      [&](std::size_t i) {
        const F a = load(head + i);
        const F b = load(upper + i);
        const F c = load(cosine + i);
        const F s = load(sine + i) * sign;
        store(head + i, a * c - b * s);
        store(upper + i, b * c + a * s);
      },
      [&](std::size_t i, std::size_t rest) {
        const F a = load_part(head + i, rest);
        const F b = load_part(upper + i, rest);
        const F c = load_part(cosine + i, rest);
        const F s = load_part(sine + i, rest) * sign;
        store_part(head + i, a * c - b * s, rest);
        store_part(upper + i, b * c + a * s, rest);
      });
}

template <class T>
void add_rows(const T* a, const T* b, T* out, std::size_t count) {
  for_vectors(
      count, [&](std::size_t i) { store(out + i, load(a + i) + load(b + i)); },
      [&](std::size_t i, std::size_t rest) {
        store_part(out + i, load_part(a + i, rest) + load_part(b + i, rest), rest);
      });
}

template <class T>
void accumulate(float* target, const T* source, std::size_t count) {
  for_vectors(
      count, [&](std::size_t i) { store(target + i, load(target + i) + load(source + i)); },
      [&](std::size_t i, std::size_t rest) {
        store_part(target + i, load_part(target + i, rest) + load_part(source + i, rest), rest);
      });
}

/// Adds eight rows a pass: less traffic on `out`, and a shallower sum.
template <class T>
void column_sum(const T* input, std::size_t stride, std::size_t rows, std::size_t columns,
                float* out) {
  for (std::size_t c = 0; c < columns; ++c) out[c] = 0;
  std::size_t row = 0;
  for (; row + 8 <= rows; row += 8) {
    const T* x = input + row * stride;
    for (std::size_t i = 0; i < columns; i += kLanes) {
      const std::size_t rest = columns - i;
      F v[8];
      for (std::size_t r = 0; r < 8; ++r) {
        const T* p = x + r * stride + i;
        v[r] = rest >= kLanes ? load(p) : load_part(p, rest);
      }
      const F eight = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
      if (rest >= kLanes) {
        store(out + i, load(out + i) + eight);
      } else {
        store_part(out + i, load_part(out + i, rest) + eight, rest);
      }
    }
  }
  for (; row < rows; ++row) accumulate(out, input + row * stride, columns);
}

template <class T>
void widen_all(const T* input, float* out, std::size_t count) {
  for_vectors(
      count, [&](std::size_t i) { store(out + i, load(input + i)); },
      [&](std::size_t i, std::size_t rest) {
        store_part(out + i, load_part(input + i, rest), rest);
      });
}

template <class T>
void narrow_all(const float* input, T* out, std::size_t count) {
  for_vectors(
      count, [&](std::size_t i) { store(out + i, load(input + i)); },
      [&](std::size_t i, std::size_t rest) {
        store_part(out + i, load_part(input + i, rest), rest);
      });
}

}  // namespace spillway::model::host::SPILLWAY_SIMD
