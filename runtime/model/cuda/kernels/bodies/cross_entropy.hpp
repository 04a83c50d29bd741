// Cross-entropy of a chunk of tokens and its gradient: a team a row. It reads the logits once for
// maximum and sum together, and once more for the gradient.
#pragma once

#include <cfloat>
#include <cmath>
#include <limits>

#include "runtime/model/cuda/kernels/bodies/elementary.hpp"
#include "runtime/model/cuda/kernels/bodies/runner.hpp"

namespace spillway::model::cuda::bodies {

/// Visits elements [begin, end), which need not start at a pack, with `lanes` lanes: whole packs
/// that start at a multiple of N as visit(PackSize<N>, first), the edges element by element.
template <unsigned N, class Visit>
SPILLWAY_HOST_DEVICE void visit_range(std::uint64_t begin, std::uint64_t end, unsigned lane,
                                      unsigned lanes, Visit visit) {
  const std::uint64_t up = (begin + N - 1) / N * N;
  const std::uint64_t down = end / N * N;
  const std::uint64_t first = up < end ? up : end;
  const std::uint64_t last = down > first ? down : first;
  if (N > 1 && begin + lane < first) visit(PackSize<1>{}, begin + lane);
  for (std::uint64_t i = first + std::uint64_t{lane} * N; i < last; i += std::uint64_t{lanes} * N) {
    visit(PackSize<N>{}, i);
  }
  if (N > 1 && last + lane < end) visit(PackSize<1>{}, last + lane);
}

/// Sum of e^(x - top) over the values met, top the largest. A NaN makes the sum NaN.
struct RunningSum {
  float top = -FLT_MAX;
  float sum = 0;

  template <unsigned N>
  SPILLWAY_HOST_DEVICE void add(const Pack<N>& x) {
    float next = top;
    for (unsigned j = 0; j < N; ++j) next = larger(next, x.lane[j]);
    if (next > top) {
      sum *= exponential(top - next);
      top = next;
    }
    for (unsigned j = 0; j < N; ++j) sum += exponential(x.lane[j] - top);
  }
};

/// A row's largest value, and the sum of e^(x - top).
struct SoftmaxSum {
  float top;
  double total;
};
constexpr std::size_t softmax_shared(unsigned lanes) {
  return lanes * (sizeof(double) + 2 * sizeof(float));
}

/// Sums over logits [begin, end), on every lane. `shared`: softmax_shared(lanes).
template <unsigned N, class Team>
SPILLWAY_HOST_DEVICE SoftmaxSum sum_softmax(Team team, const float* logits, std::uint64_t begin,
                                            std::uint64_t end, std::byte* shared) {
  auto* sums = reinterpret_cast<double*>(shared);
  auto* tops = reinterpret_cast<float*>(sums + Team::kLanes);
  auto* own_tops = tops + Team::kLanes;  // `reduce` overwrites
  team.each([&](unsigned lane) {
    RunningSum running;
    visit_range<N>(begin, end, lane, Team::kLanes, [&](auto pack, auto i) {
      running.add(load<decltype(pack)::value>(logits + i));
    });
    tops[lane] = running.top;
    own_tops[lane] = running.top;
    sums[lane] = static_cast<double>(running.sum);
  });
  const float top = team.reduce(tops, [](float a, float b) { return larger(a, b); });
  team.each(
      [&](unsigned lane) { sums[lane] *= static_cast<double>(exponential(own_tops[lane] - top)); });
  const double total = team.sum(sums);
  return {top, total};
}

/// What one lane shares with the others: gradient = e^(x - top) * factor, but at the target.
struct CrossEntropyRow {
  float factor, at_target;
};

template <unsigned N, class T>
struct CrossEntropy {
  const float* logits;
  const std::int32_t* targets;
  T* gradient;  ///< null: none. May be `logits`: each element is read first
  double* losses;
  std::uint64_t vocabulary;
  std::uint64_t stride;  ///< of rows
  float scale;

  static constexpr unsigned kLanes = 512;
  static constexpr std::size_t kShared = softmax_shared(kLanes) + 16;

  SPILLWAY_HOST_DEVICE CrossEntropyRow finish(std::uint64_t row, float top, double total) const {
    const auto target = static_cast<std::uint64_t>(targets[row]);
    if (target >= vocabulary) {
      constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
      losses[row] = static_cast<double>(kNan);
      return {kNan, kNan};
    }
    const float x = logits[row * stride + target];
    losses[row] = std::log(total) + static_cast<double>(top) - static_cast<double>(x);
    const double p = std::exp(static_cast<double>(x - top)) / total;
    return {static_cast<float>(static_cast<double>(scale) / total),
            static_cast<float>((p - 1.0) * static_cast<double>(scale))};
  }

  template <class Team>
  SPILLWAY_HOST_DEVICE void ignore(Team team, std::uint64_t row) const {
    const std::uint64_t begin = row * stride;
    team.each([&](unsigned lane) {
      if (lane == 0) losses[row] = 0;
      if (gradient == nullptr) return;
      visit_range<N>(begin, begin + vocabulary, lane, Team::kLanes, [&](auto pack, auto i) {
        store(gradient + i, filled<decltype(pack)::value>(0));
      });
    });
  }

  template <class Team>
  SPILLWAY_HOST_DEVICE void operator()(Team team, std::uint64_t row, std::byte* shared) const {
    auto* found = reinterpret_cast<CrossEntropyRow*>(shared + softmax_shared(Team::kLanes));
    if (targets[row] < 0) {
      ignore(team, row);
      return;
    }
    const std::uint64_t begin = row * stride;
    const std::uint64_t end = begin + vocabulary;
    const SoftmaxSum scanned = sum_softmax<N>(team, logits, begin, end, shared);
    const float top = scanned.top;
    const double total = scanned.total;
    team.each([&](unsigned lane) {
      if (lane == 0) *found = finish(row, top, total);
    });
    if (gradient == nullptr) return;
    const auto target = begin + static_cast<std::uint64_t>(targets[row]);
    team.each([&](unsigned lane) {
      const CrossEntropyRow r = *found;
      visit_range<N>(begin, end, lane, Team::kLanes, [&](auto pack, auto i) {
        constexpr unsigned kN = decltype(pack)::value;
        const Pack<kN> x = load<kN>(logits + i);
        store(gradient + i, map<kN>([&](unsigned j) {
                return i + j == target ? r.at_target : exponential(x.lane[j] - top) * r.factor;
              }));
      });
    });
  }
};

/// Makes loss_sum = (first ? 0 : loss_sum) + sum of losses[rows]. A team does it alone.
struct SumLosses {
  const double* losses;
  double* loss_sum;
  std::uint64_t rows;
  bool first;

  static constexpr unsigned kLanes = 256;
  static constexpr std::size_t kShared = kLanes * sizeof(double);

  template <class Team>
  SPILLWAY_HOST_DEVICE void operator()(Team team, std::uint64_t /*index*/,
                                       std::byte* shared) const {
    auto* sums = reinterpret_cast<double*>(shared);
    team.each([&](unsigned lane) {
      double total = 0;
      for (std::uint64_t row = lane; row < rows; row += Team::kLanes) total += losses[row];
      sums[lane] = total;
    });
    const double total = team.sum(sums);
    team.each([&](unsigned lane) {
      if (lane == 0) *loss_sum = first ? total : *loss_sum + total;
    });
  }
};

template <class Runner>
void run(Runner& runner, DType compute, const CrossEntropyArguments& a) {
  SPILLWAY_ASSERT(a.workspace.size() >= a.rows * sizeof(double));
  auto* losses = reinterpret_cast<double*>(a.workspace.address());
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const float* logits = a.logits.address();
    T* gradient = a.logits_gradient.empty() ? nullptr : elements<T>(a.logits_gradient);
    with_pack(aligned(logits, gradient), [&](auto pack) {
      using Body = CrossEntropy<decltype(pack)::value, T>;
      runner.template teams<Body::kLanes>(Body{logits, a.targets.address(), gradient, losses,
                                               a.vocabulary, a.row_stride(), a.gradient_scale},
                                          a.rows, Body::kShared);
    });
  });
  runner.template teams<SumLosses::kLanes>(SumLosses{losses, a.loss_sum.address(), a.rows, a.first},
                                           1, SumLosses::kShared);
}

}  // namespace spillway::model::cuda::bodies
