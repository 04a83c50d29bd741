// Cross-entropy over tiles of the vocabulary: each row's scan goes from tile to tile, and the
// gradient of a tile follows from the finished scans. A team a row.
#pragma once

#include <cmath>
#include <limits>

#include "runtime/model/cuda/kernels/bodies/cross_entropy.hpp"

namespace spillway::model::cuda::bodies {

template <unsigned N>
struct ScanVocabulary {
  const float* logits;
  const std::int32_t* targets;
  VocabularyScan* scans;
  std::uint64_t columns, stride, first_column, vocabulary;
  bool first;

  static constexpr unsigned kLanes = 512;
  static constexpr std::size_t kShared = softmax_shared(kLanes);

  SPILLWAY_HOST_DEVICE void merge(std::uint64_t row, double top, double total) const {
    VocabularyScan scan = scans[row];
    if (first) {
      scan = {top, total, 0};
    } else if (top > scan.largest) {
      scan.total = scan.total * std::exp(scan.largest - top) + total;
      scan.largest = top;
    } else {
      scan.total += total * std::exp(top - scan.largest);
    }
    const auto target = static_cast<std::uint64_t>(targets[row]);  // a negative one becomes huge
    const std::uint64_t column = target - first_column;
    if (column < columns) scan.target = static_cast<double>(logits[row * stride + column]);
    if (target >= vocabulary) scan.target = std::numeric_limits<double>::quiet_NaN();
    scans[row] = scan;
  }

  template <class Team>
  SPILLWAY_HOST_DEVICE void operator()(Team team, std::uint64_t row, std::byte* shared) const {
    const std::uint64_t begin = row * stride;
    const std::uint64_t end = begin + columns;
    const SoftmaxSum scanned = sum_softmax<N>(team, logits, begin, end, shared);
    team.each([&](unsigned lane) {
      if (lane == 0) merge(row, static_cast<double>(scanned.top), scanned.total);
    });
  }
};

/// An item is a row.
struct MergeScans {
  const VocabularyScan* parts;
  VocabularyScan* scans;
  std::uint64_t rows, count;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t row) const {
    VocabularyScan scan = parts[row];
    for (std::uint64_t part = 1; part < count; ++part) {
      scan = merged(scan, parts[part * rows + row]);
    }
    scans[row] = scan;
  }
};

/// An item is a row.
struct ScannedLoss {
  const VocabularyScan* scans;
  const std::int32_t* targets;
  double* losses;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t row) const {
    const VocabularyScan& scan = scans[row];
    losses[row] = targets[row] < 0 ? 0 : std::log(scan.total) + scan.largest - scan.target;
  }
};

template <unsigned N, class T>
struct VocabularyGradient {
  const float* logits;
  const std::int32_t* targets;
  const VocabularyScan* scans;
  T* gradient;  ///< may be `logits`: each element is read first
  std::uint64_t columns, stride, first_column, vocabulary;
  float scale;

  static constexpr unsigned kLanes = 512;
  static constexpr std::size_t kShared = sizeof(CrossEntropyRow);

  /// Computes in fp64, which many GPUs do slowly: one lane does it for all.
  SPILLWAY_HOST_DEVICE CrossEntropyRow row_of(const VocabularyScan& scan,
                                              bool in_vocabulary) const {
    const double p = std::exp(scan.target - scan.largest) / scan.total;
    return {in_vocabulary ? static_cast<float>(static_cast<double>(scale) / scan.total)
                          : std::numeric_limits<float>::quiet_NaN(),
            static_cast<float>((p - 1.0) * static_cast<double>(scale))};
  }

  template <class Team>
  SPILLWAY_HOST_DEVICE void operator()(Team team, std::uint64_t row, std::byte* shared) const {
    auto* found = reinterpret_cast<CrossEntropyRow*>(shared);
    const bool ignored = targets[row] < 0;
    const auto target = static_cast<std::uint64_t>(targets[row]);
    const std::uint64_t begin = row * stride;
    const auto top = static_cast<float>(scans[row].largest);
    team.each([&](unsigned lane) {
      if (lane == 0) *found = row_of(scans[row], target < vocabulary);
    });
    const std::uint64_t wanted = begin + target - first_column;  // in a tile before or behind: huge
    const bool here = target - first_column < columns;
    team.each([&](unsigned lane) {
      const CrossEntropyRow r = *found;
      visit_range<N>(begin, begin + columns, lane, Team::kLanes, [&](auto pack, auto i) {
        constexpr unsigned kN = decltype(pack)::value;
        const Pack<kN> x = load<kN>(logits + i);
        store(gradient + i, map<kN>([&](unsigned j) {
                if (ignored) return 0.0F;
                return here && i + j == wanted ? r.at_target
                                               : exponential(x.lane[j] - top) * r.factor;
              }));
      });
    });
  }
};

template <class Runner>
void run(Runner& runner, DType /*compute*/, const ScanVocabularyOp& op) {
  const VocabularyTile& tile = op.tile;
  const float* logits = tile.logits.address();
  with_pack(aligned(logits), [&](auto pack) {
    using Body = ScanVocabulary<decltype(pack)::value>;
    runner.template teams<Body::kLanes>(
        Body{logits, tile.targets.address(), op.scans.address(), tile.columns, tile.row_stride(),
             tile.first_column, tile.vocabulary, op.first},
        tile.rows, Body::kShared);
  });
}

template <class Runner>
void run(Runner& runner, DType /*compute*/, const MergeScansOp& op) {
  runner.items(MergeScans{op.parts.address(), op.scans.address(), op.scans.size(),
                          op.parts.size() / op.scans.size()},
               op.scans.size());
}

template <class Runner>
void run(Runner& runner, DType /*compute*/, const SumLossesOp& op) {
  const std::uint64_t rows = op.targets.size();
  SPILLWAY_ASSERT(op.workspace.size() >= rows * sizeof(double));
  auto* losses = reinterpret_cast<double*>(op.workspace.address());
  runner.items(ScannedLoss{op.scans.address(), op.targets.address(), losses}, rows);
  runner.template teams<SumLosses::kLanes>(SumLosses{losses, op.loss_sum.address(), rows, true}, 1,
                                           SumLosses::kShared);
}

template <class Runner>
void run(Runner& runner, DType compute, const VocabularyGradientOp& op) {
  const VocabularyTile& tile = op.tile;
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const float* logits = tile.logits.address();
    T* gradient = elements<T>(op.logits_gradient);
    with_pack(aligned(logits, gradient), [&](auto pack) {
      using Body = VocabularyGradient<decltype(pack)::value, T>;
      runner.template teams<Body::kLanes>(
          Body{logits, tile.targets.address(), op.scans.address(), gradient, tile.columns,
               tile.row_stride(), tile.first_column, tile.vocabulary, op.gradient_scale},
          tile.rows, Body::kShared);
    });
  });
}

}  // namespace spillway::model::cuda::bodies
