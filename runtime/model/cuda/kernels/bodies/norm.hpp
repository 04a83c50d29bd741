// LayerNorm and RMSNorm of rows, a team a row, and their gradients. Formulas and rounding are those
// of runtime/model/host/kernel_rows.hpp; sums run over a team's lanes, and the gradients of weight
// and bias over groups of tokens.
#pragma once

#include <cmath>

#include "runtime/model/cuda/kernels/bodies/reduction.hpp"

namespace spillway::model::cuda::bodies {

template <class T>
struct NormForwardCall {
  NormKind kind;
  std::uint64_t heads, width;
  float eps;
  Rows<const T> input;
  const T* weight;
  const T* bias;  ///< null: none
  Rows<T> out;
  float* statistics;
};

/// Row `index` is token * heads + head. A team shares a float a lane.
template <unsigned N, class T>
struct NormForward {
  NormForwardCall<T> call;

  /// Writes mean and 1 / deviation of `x` to `statistics`, and the latter to partial[0].
  template <class Team>
  SPILLWAY_HOST_DEVICE float moments(Team team, const T* x, float* statistics,
                                     float* partial) const {
    const std::uint64_t width = call.width;
    float mean = 0;
    if (call.kind == NormKind::layer) {
      team.each([&](unsigned lane) {
        float total = 0;
        for (std::uint64_t i = std::uint64_t{lane} * N; i < width; i += Team::kLanes * N) {
          const Pack<N> v = load<N>(x + i);
          for (unsigned j = 0; j < N; ++j) total += v.lane[j];
        }
        partial[lane] = total;
      });
      mean = team.sum(partial) / static_cast<float>(width);
    }
    team.each([&](unsigned lane) {
      float squares = 0;
      for (std::uint64_t i = std::uint64_t{lane} * N; i < width; i += Team::kLanes * N) {
        const Pack<N> v = load<N>(x + i);
        for (unsigned j = 0; j < N; ++j) {
          const float d = v.lane[j] - mean;
          squares = std::fmaf(d, d, squares);
        }
      }
      partial[lane] = squares;
    });
    const float squares = team.sum(partial);
    team.each([&](unsigned lane) {
      if (lane != 0) return;
      const double variance = static_cast<double>(squares) / static_cast<double>(width);
      partial[0] = static_cast<float>(1.0 / std::sqrt(variance + static_cast<double>(call.eps)));
      statistics[0] = mean;
      statistics[1] = partial[0];
    });
    return mean;
  }

  template <class Team>
  SPILLWAY_HOST_DEVICE void operator()(Team team, std::uint64_t index, std::byte* shared) const {
    auto* partial = reinterpret_cast<float*>(shared);
    const std::uint64_t token = index / call.heads;
    const std::uint64_t head = index % call.heads;
    const T* x = call.input.at(token, head, call.width);
    T* y = call.out.at(token, head, call.width);
    const float mean = moments(team, x, call.statistics + 2 * index, partial);
    team.each([&](unsigned lane) {
      const float inverse = partial[0];
      for (std::uint64_t i = std::uint64_t{lane} * N; i < call.width; i += Team::kLanes * N) {
        const Pack<N> v = load<N>(x + i);
        const Pack<N> weight = load<N>(call.weight + i);
        const Pack<N> bias = call.bias != nullptr ? load<N>(call.bias + i) : filled<N>(0);
        store(y + i, map<N>([&](unsigned j) {
                return std::fmaf((v.lane[j] - mean) * inverse, weight.lane[j], bias.lane[j]);
              }));
      }
    });
  }
};

template <class T>
struct NormBackwardCall {
  NormKind kind;
  std::uint64_t tokens, heads, width, tokens_in_group;
  Rows<const T> input;
  const T* weight;
  Rows<const T> out_gradient;
  const float* statistics;
  Rows<const T> residual_gradient;  ///< null data: none
  Rows<T> input_gradient;
  float* partial;         ///< [groups, columns]: weight's sums, then bias's
  std::uint64_t columns;  ///< width, twice where there is a bias
  bool sums_in_shared;    ///< else a group adds in its row of `partial`
};

/// Group `index` of tokens shares two floats a lane, then `columns` sums if they lie there.
template <unsigned N, class T>
struct NormBackward {
  NormBackwardCall<T> call;

  struct Row {
    const T* x;
    const T* dy;
    const T* residual;
    T* dx;
    float mean, inverse;
  };
  /// What the two passes over a row need of one pack.
  struct Terms {
    Pack<N> normal, gradient, weighted;
  };
  SPILLWAY_HOST_DEVICE Terms terms(const Row& row, std::uint64_t i) const {
    Terms t;
    const Pack<N> x = load<N>(row.x + i);
    const Pack<N> weight = load<N>(call.weight + i);
    t.gradient = load<N>(row.dy + i);
    t.normal = map<N>([&](unsigned j) { return (x.lane[j] - row.mean) * row.inverse; });
    t.weighted = map<N>([&](unsigned j) { return t.gradient.lane[j] * weight.lane[j]; });
    return t;
  }

  template <class Team>
  SPILLWAY_HOST_DEVICE void run_row(Team team, const Row& row, float* partial, float* sums) const {
    const std::uint64_t width = call.width;
    team.each([&](unsigned lane) {
      float weighted = 0;
      float product = 0;
      for (std::uint64_t i = std::uint64_t{lane} * N; i < width; i += Team::kLanes * N) {
        const Terms t = terms(row, i);
        for (unsigned j = 0; j < N; ++j) {
          weighted += t.weighted.lane[j];
          product = std::fmaf(t.weighted.lane[j], t.normal.lane[j], product);
        }
      }
      partial[lane] = weighted;
      partial[Team::kLanes + lane] = product;
    });
    const float n = static_cast<float>(width);
    const float mean_weighted = call.kind == NormKind::layer ? team.sum(partial) / n : 0.0F;
    const float mean_product = team.sum(partial + Team::kLanes) / n;
    team.each([&](unsigned lane) {
      for (std::uint64_t i = std::uint64_t{lane} * N; i < width; i += Team::kLanes * N) {
        const Terms t = terms(row, i);
        Pack<N> d = map<N>([&](unsigned j) {
          return std::fmaf(-t.normal.lane[j], mean_product, t.weighted.lane[j] - mean_weighted) *
                 row.inverse;
        });
        if (row.residual != nullptr) d = d + load<N>(row.residual + i);
        store(row.dx + i, d);
        const Pack<N> sum = load<N>(sums + i);
        store(sums + i, map<N>([&](unsigned j) {
                return std::fmaf(t.gradient.lane[j], t.normal.lane[j], sum.lane[j]);
              }));
        if (call.columns > width) {
          store(sums + width + i, load<N>(sums + width + i) + t.gradient);
        }
      }
    });
  }

  template <class Team>
  SPILLWAY_HOST_DEVICE void operator()(Team team, std::uint64_t index, std::byte* shared) const {
    auto* partial = reinterpret_cast<float*>(shared);
    float* kept = call.partial + index * call.columns;
    float* sums = call.sums_in_shared ? partial + 2 * Team::kLanes : kept;
    // A lane meets the same columns of `sums` in every row: no other lane needs to wait for it.
    const auto for_packs = [&](unsigned lane, auto visit) {
      for (std::uint64_t i = std::uint64_t{lane} * N; i < call.width; i += Team::kLanes * N) {
        visit(i);
        if (call.columns > call.width) visit(call.width + i);
      }
    };
    team.each([&](unsigned lane) {
      for_packs(lane, [&](std::uint64_t i) { store(sums + i, filled<N>(0)); });
    });
    const std::uint64_t first = index * call.tokens_in_group;
    const std::uint64_t end = first + call.tokens_in_group;
    const std::uint64_t last = end < call.tokens ? end : call.tokens;
    for (std::uint64_t token = first; token < last; ++token) {
      for (std::uint64_t head = 0; head < call.heads; ++head) {
        const float* statistics = call.statistics + 2 * (token * call.heads + head);
        const std::uint64_t width = call.width;
        const Row row{call.input.at(token, head, width),
                      call.out_gradient.at(token, head, width),
                      call.residual_gradient.data != nullptr
                          ? call.residual_gradient.at(token, head, width)
                          : nullptr,
                      call.input_gradient.at(token, head, width),
                      statistics[0],
                      statistics[1]};
        run_row(team, row, partial, sums);
      }
    }
    if (!call.sums_in_shared) return;
    team.each([&](unsigned lane) {
      for_packs(lane, [&](std::uint64_t i) { store(kept + i, load<N>(sums + i)); });
    });
  }
};

/// Rows of at most so many elements are a warp's, others a thread block's.
inline constexpr std::uint64_t kWarpWidth = 1024;
inline constexpr unsigned kNormLanes = 256;

/// Runs `body` over `count` rows or groups of rows of `width`, with two floats a lane and `floats`
/// more shared by each team.
template <class Runner, class Body>
void run_norm(Runner& runner, const Body& body, std::uint64_t count, std::uint64_t width,
              std::uint64_t floats) {
  if (width <= kWarpWidth) {
    runner.template teams<kWarpLanes>(body, count, (2 * kWarpLanes + floats) * sizeof(float));
  } else {
    runner.template teams<kNormLanes>(body, count, (2 * kNormLanes + floats) * sizeof(float));
  }
}

template <class Runner>
void run(Runner& runner, DType compute, const NormForwardOp& op) {
  const NormShape& shape = op.shape;
  const NormForwardArguments& a = op.arguments;
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const NormForwardCall<T> call{.kind = shape.kind,
                                  .heads = shape.heads,
                                  .width = shape.width,
                                  .eps = shape.eps,
                                  .input = rows<T>(a.input),
                                  .weight = elements<T>(a.weight),
                                  .bias = a.bias.empty() ? nullptr : elements<T>(a.bias),
                                  .out = rows<T>(a.out),
                                  .statistics = a.statistics.address()};
    const bool packed = rows_packed(call.input, call.out) && aligned(call.weight, call.bias) &&
                        whole_packs(shape.width);
    with_pack(packed, [&](auto pack) {
      run_norm(runner, NormForward<decltype(pack)::value, T>{call}, shape.rows(), shape.width, 0);
    });
  });
}

template <class T>
NormBackwardCall<T> norm_backward_call(const NormShape& shape, const NormBackwardArguments& a) {
  const bool has_bias = !a.bias_gradient.values.empty();
  NormBackwardCall<T> call{.kind = shape.kind,
                           .tokens = shape.tokens,
                           .heads = shape.heads,
                           .width = shape.width,
                           .tokens_in_group = rows_in_group(shape.tokens, 2 * shape.width),
                           .input = rows<T>(a.input),
                           .weight = elements<T>(a.weight),
                           .out_gradient = rows<T>(a.out_gradient),
                           .statistics = a.statistics.address(),
                           .residual_gradient = {},
                           .input_gradient = rows<T>(a.input_gradient),
                           .partial = reinterpret_cast<float*>(a.workspace.address()),
                           .columns = has_bias ? 2 * shape.width : shape.width,
                           .sums_in_shared = false};
  if (!a.residual_gradient.data.empty()) call.residual_gradient = rows<T>(a.residual_gradient);
  const std::uint64_t teams = shape.width <= kWarpWidth ? kWarpsInBlock : 1;
  const std::uint64_t lanes = shape.width <= kWarpWidth ? kWarpLanes : kNormLanes;
  call.sums_in_shared = teams * (2 * lanes + call.columns) * sizeof(float) <= kSharedBytes;
  return call;
}

template <class Runner>
void run(Runner& runner, DType compute, const NormBackwardOp& op) {
  const NormShape& shape = op.shape;
  const NormBackwardArguments& a = op.arguments;
  const std::uint64_t groups = group_count(shape.tokens, 2 * shape.width);
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const NormBackwardCall<T> call = norm_backward_call<T>(shape, a);
    SPILLWAY_ASSERT(a.workspace.size() >= groups * call.columns * sizeof(float));
    const bool packed =
        rows_packed(call.input, call.out_gradient, call.residual_gradient, call.input_gradient) &&
        aligned(call.weight, call.partial) && whole_packs(shape.width);
    with_pack(packed, [&](auto pack) {
      run_norm(runner, NormBackward<decltype(pack)::value, T>{call}, groups, shape.width,
               call.sums_in_shared ? call.columns : 0);
    });
    sum_partials(runner, call.partial, groups, call.columns, a.weight_gradient);
    if (call.columns > shape.width) {
      sum_partials(runner, call.partial + shape.width, groups, call.columns, a.bias_gradient);
    }
  });
}

}  // namespace spillway::model::cuda::bodies
