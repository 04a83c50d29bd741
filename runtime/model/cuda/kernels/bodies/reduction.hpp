// Sums over rows: groups of rows each give a row of partial sums, which are then added in a fixed
// order. How many groups there are depends on the shape alone.
#pragma once

#include <algorithm>

#include "runtime/model/cuda/kernels/bodies/runner.hpp"

namespace spillway::model::cuda::bodies {

/// Most groups that rows are split into: enough to fill any GPU, and few enough that partial sums
/// stay a small part of the traffic (8 MiB of them below 4096 columns, 512 rows above).
constexpr std::uint64_t most_groups(std::uint64_t columns) {
  constexpr std::uint64_t kElements = std::uint64_t{1} << 21;
  return std::clamp<std::uint64_t>(kElements / std::max<std::uint64_t>(1, columns), 512, 4096);
}
constexpr std::uint64_t rows_in_group(std::uint64_t rows, std::uint64_t columns) {
  const std::uint64_t most = most_groups(columns);
  return std::max<std::uint64_t>(1, (rows + most - 1) / most);
}
constexpr std::uint64_t group_count(std::uint64_t rows, std::uint64_t columns) {
  const std::uint64_t in_group = rows_in_group(rows, columns);
  return (rows + in_group - 1) / in_group;
}

/// Bytes of partial sums of at most so many rows and columns, and of a double a row.
constexpr std::uint64_t reduction_bytes(std::uint64_t rows, std::uint64_t columns) {
  constexpr std::uint64_t kElements = std::uint64_t{1} << 21;
  const std::uint64_t partial =
      std::min(rows * columns, std::max(std::min(4096 * columns, kElements), 512 * columns));
  return round_up(std::max(partial * sizeof(float), rows * sizeof(double)), 64);
}

/// Makes out[c] (+)= sum of partial[g * stride + c] over groups g: 32 columns a team, whose lanes
/// 32 s + c each take every (Lanes / 32)th group.
struct SumPartials {
  const float* partial;
  std::uint64_t groups, stride, columns;
  float* out;
  bool first;

  static constexpr unsigned kLanes = 1024;
  static constexpr unsigned kColumns = 32;
  static constexpr std::size_t kShared = kLanes * sizeof(float);

  template <class Team>
  SPILLWAY_HOST_DEVICE void operator()(Team team, std::uint64_t tile, std::byte* shared) const {
    auto* values = reinterpret_cast<float*>(shared);
    team.each([&](unsigned lane) {
      const std::uint64_t column = tile * kColumns + lane % kColumns;
      float total = 0;
      if (column < columns) {
        for (std::uint64_t g = lane / kColumns; g < groups; g += Team::kLanes / kColumns) {
          total += partial[g * stride + column];
        }
      }
      values[lane] = total;
    });
    for (unsigned half = Team::kLanes / 2; half >= kColumns; half /= 2) {
      team.each([&](unsigned lane) {
        if (lane < half) values[lane] += values[lane + half];
      });
    }
    team.each([&](unsigned lane) {
      const std::uint64_t column = tile * kColumns + lane;
      if (lane >= kColumns || column >= columns) return;
      out[column] = first ? values[lane] : out[column] + values[lane];
    });
  }
};

template <class Runner>
void sum_partials(Runner& runner, const float* partial, std::uint64_t groups, std::uint64_t stride,
                  Gradient gradient) {
  const std::uint64_t columns = gradient.values.size();
  runner.template teams<SumPartials::kLanes>(
      SumPartials{partial, groups, stride, columns, gradient.values.address(), gradient.first},
      (columns + SumPartials::kColumns - 1) / SumPartials::kColumns, SumPartials::kShared);
}

/// Sums columns in part: item (group, pack) adds its columns of the group's rows in order.
template <unsigned N, class T>
struct ColumnSums {
  const T* input;
  float* partial;
  std::uint64_t rows, columns, stride, rows_in_group;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    const std::uint64_t packs = columns / N;
    const std::uint64_t group = item / packs;
    const std::uint64_t column = item % packs * N;
    const std::uint64_t first = group * rows_in_group;
    const std::uint64_t last = first + rows_in_group < rows ? first + rows_in_group : rows;
    constexpr unsigned kAhead = 4;  // loads in flight
    Pack<N> total = filled<N>(0);
    std::uint64_t row = first;
    for (; row + kAhead <= last; row += kAhead) {
      Pack<N> ahead[kAhead];
      for (unsigned i = 0; i < kAhead; ++i) {
        ahead[i] = load<N>(input + (row + i) * stride + column);
      }
      for (unsigned i = 0; i < kAhead; ++i) total = total + ahead[i];
    }
    for (; row < last; ++row) total = total + load<N>(input + row * stride + column);
    store(partial + group * columns + column, total);
  }
};

template <class Runner>
void run(Runner& runner, DType compute, const BiasGradientOp& op) {
  const std::uint64_t rows = op.rows;
  const std::uint64_t columns = op.gradient.values.size();
  const std::uint64_t groups = group_count(rows, columns);
  SPILLWAY_ASSERT(op.workspace.size() >= groups * columns * sizeof(float));
  auto* partial = reinterpret_cast<float*>(op.workspace.address());
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const T* input = elements<T>(op.out_gradient.data);
    const std::uint64_t stride = op.out_gradient.stride;
    const bool packs = aligned(input, partial) && whole_packs(columns) && whole_packs(stride);
    with_pack(packs, [&](auto pack) {
      constexpr unsigned kN = decltype(pack)::value;
      const std::uint64_t in_group = rows_in_group(rows, columns);
      runner.items(ColumnSums<kN, T>{input, partial, rows, columns, stride, in_group},
                   groups * (columns / kN));
    });
  });
  sum_partials(runner, partial, groups, columns, op.gradient);
}

}  // namespace spillway::model::cuda::bodies
