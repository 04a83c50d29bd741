// Kernels of the loss: softmax and its gradient over whole rows of logits, or tile by tile. See
// kernel_math.hpp for how this file is compiled.
#pragma once

#include "runtime/model/host/kernel_rows.hpp"

namespace spillway::model::host::SPILLWAY_SIMD {

inline float largest_of(const float* x, std::size_t n) {
  F top = set(-__builtin_huge_valf());
  for (std::size_t i = 0; i < n; i += kLanes) {
    top = max(top, n - i >= kLanes ? load(x + i) : load_part(x + i, n - i, x[0]));
  }
  return largest(top);
}

/// Returns the sum of exp(x[i] - maximum).
inline double total_of(const float* x, std::size_t n, float maximum) {
  constexpr std::size_t kGroup = 64 * kLanes;  // fp32 partial sums stay short
  double total = 0;
  for (std::size_t group = 0; group < n; group += kGroup) {
    const std::size_t end = group + kGroup < n ? group + kGroup : n;
    F part = set(0);
    for (std::size_t i = group; i < end; i += kLanes) {
      const std::size_t rest = end - i;
      // The fill is 87 below the maximum: e^-87.3 each, below any bit of a sum that is >= 1.
      const F v = rest >= kLanes ? load(x + i) : load_part(x + i, rest, maximum - 100.0F);
      part = part + exponential(v - set(maximum));
    }
    total += static_cast<double>(sum(part));
  }
  return total;
}

template <class T>
void zero_row(T* row, std::size_t n) {
  for_vectors(
      n, [&](std::size_t i) { store(row + i, set(0)); },
      [&](std::size_t i, std::size_t rest) { store_part(row + i, set(0), rest); });
}

/// Sets d[i] = exp(x[i] - maximum) * scale / total; `d` may be `x`.
template <class T>
void softmax_row(const float* x, T* d, std::size_t n, float maximum, double total, float scale) {
  const F factor = set(static_cast<float>(static_cast<double>(scale) / total));
  for_vectors(
      n, [&](std::size_t i) { store(d + i, exponential(load(x + i) - set(maximum)) * factor); },
      [&](std::size_t i, std::size_t rest) {
        store_part(d + i, exponential(load_part(x + i, rest) - set(maximum)) * factor, rest);
      });
}

/// Returns the gradient at a target whose logit is `below` minus the row's largest.
inline float target_gradient(float below, double total, float scale) {
  const double p = __builtin_exp(static_cast<double>(below)) / total;
  return static_cast<float>((p - 1.0) * static_cast<double>(scale));
}

/// Makes loss and gradient of rows [first, last). `gradient` may be `logits`: each is read first.
template <class T>
void cross_entropy(const CrossEntropyCall<T>& call, std::size_t first, std::size_t last) {
  const std::size_t n = call.vocabulary;
  for (std::size_t row = first; row < last; ++row) {
    const float* x = call.logits + row * call.stride;
    T* d = call.gradient == nullptr ? nullptr : call.gradient + row * call.stride;
    if (call.targets[row] < 0) {  // ignored: no loss, no gradient
      call.losses[row] = 0;
      if (d != nullptr) zero_row(d, n);
      continue;
    }
    const float maximum = largest_of(x, n);
    const double total = total_of(x, n, maximum);
    const auto target = static_cast<std::size_t>(call.targets[row]);
    call.losses[row] =
        __builtin_log(total) + static_cast<double>(maximum) - static_cast<double>(x[target]);
    if (d == nullptr) continue;
    const float below = x[target] - maximum;
    softmax_row(x, d, n, maximum, total, call.scale);
    store_part(d + target, set(target_gradient(below, total, call.scale)), 1);
  }
}

template <class T>
void scan_vocabulary(const VocabularyCall<T>& call, std::size_t first, std::size_t last) {
  const std::size_t n = call.columns;
  for (std::size_t row = first; row < last; ++row) {
    const float* x = call.logits + row * call.stride;
    const float maximum = largest_of(x, n);
    const double total = total_of(x, n, maximum);
    VocabularyScan& scan = call.scans[row];
    const auto tile_largest = static_cast<double>(maximum);
    if (call.first) {
      scan = {tile_largest, total, 0};
    } else if (tile_largest > scan.largest) {
      scan.total = scan.total * __builtin_exp(scan.largest - tile_largest) + total;
      scan.largest = tile_largest;
    } else {
      scan.total += total * __builtin_exp(tile_largest - scan.largest);
    }
    const auto target = static_cast<std::size_t>(call.targets[row]) - call.first_column;
    if (call.targets[row] >= 0 && target < n) scan.target = static_cast<double>(x[target]);
  }
}

template <class T>
void vocabulary_gradient(const VocabularyCall<T>& call, std::size_t first, std::size_t last) {
  const std::size_t n = call.columns;
  for (std::size_t row = first; row < last; ++row) {
    const float* x = call.logits + row * call.stride;
    T* d = call.gradient + row * call.stride;
    if (call.targets[row] < 0) {
      zero_row(d, n);
      continue;
    }
    const VocabularyScan& scan = call.scans[row];
    const auto maximum = static_cast<float>(scan.largest);
    const auto target = static_cast<std::size_t>(call.targets[row]) - call.first_column;
    const float below = target < n ? x[target] - maximum : 0;
    softmax_row(x, d, n, maximum, scan.total, call.scale);
    if (target < n) store_part(d + target, set(target_gradient(below, scan.total, call.scale)), 1);
  }
}

}  // namespace spillway::model::host::SPILLWAY_SIMD
