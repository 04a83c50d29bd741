// Causal grouped-query attention, forward and backward, as one team (runtime/base/team.hpp)
// computes a tile of it: the team keeps kKept rows in shared memory and streams the rows that they
// meet past them, kStreamed at a time. Nothing is added by two teams, so every sum has one order.
//
// All memory is fp32 but the operands. Scores are kept for one streamed tile only. Forward: softmax
// with a running maximum. Backward, with p the probabilities, L log_sum, and per row
// delta = sum(out * out_gradient):  d_score = p * (out_gradient . v - delta) * scale.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/model/cuda/kernels/bodies/element.hpp"

namespace spillway::model::cuda::bodies {

inline constexpr unsigned kKept = 16;
inline constexpr unsigned kStreamed = 32;
inline constexpr unsigned kAttentionLanes = 128;
/// Rows of the score tiles are apart by an odd number, so that lanes meet in no memory bank.
inline constexpr unsigned kScorePitch = kStreamed + 1;
inline constexpr unsigned kKeptPerLane = kKept * kStreamed / kAttentionLanes;
static_assert(kAttentionLanes % kStreamed == 0 && kKept % kKeptPerLane == 0);

struct AttentionSize {
  std::uint32_t batch = 0;
  std::uint32_t sequence = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  float scale = 0;  ///< of scores, 1 / sqrt(head_dim)
};

/// HeadRows of row_ops.hpp, in elements.
template <class T>
struct Heads {
  T* data = nullptr;
  std::uint64_t stride = 0;

  SPILLWAY_HOST_DEVICE T* row(const AttentionSize& size, std::uint32_t batch, std::uint32_t head,
                              std::uint64_t token) const {
    return data + (std::uint64_t{batch} * size.sequence + token) * stride +
           std::uint64_t{head} * size.head_dim;
  }
};

template <class T>
struct AttentionForwardCall {
  AttentionSize size;
  Heads<const T> q, k, v;
  Heads<T> out;
  float* log_sum = nullptr;  ///< [batch, heads, sequence]
};

template <class T>
struct AttentionBackwardCall {
  AttentionSize size;
  Heads<const T> q, k, v, out, out_gradient;
  Heads<T> q_gradient, k_gradient, v_gradient;
  const float* log_sum = nullptr;
  float* delta = nullptr;  ///< [batch, heads, sequence], written by the q gradient's tiles
};

/// Tile `index` of a grid over batch, heads and tiles of kKept positions.
struct AttentionTile {
  std::uint32_t batch, head, first, rows;

  SPILLWAY_HOST_DEVICE AttentionTile(const AttentionSize& size, std::uint32_t head_count,
                                     std::uint64_t index) {
    const std::uint64_t tiles = (size.sequence + kKept - 1) / kKept;
    first = static_cast<std::uint32_t>(index % tiles) * kKept;
    head = static_cast<std::uint32_t>(index / tiles % head_count);
    batch = static_cast<std::uint32_t>(index / tiles / head_count);
    rows = size.sequence - first < kKept ? size.sequence - first : kKept;
  }
};
constexpr std::uint64_t attention_tiles(std::uint32_t batch, std::uint32_t heads,
                                        std::uint32_t sequence) {
  return std::uint64_t{batch} * heads * ((sequence + kKept - 1) / kKept);
}

/// Odd distance of streamed rows in floats, as that of score rows.
SPILLWAY_HOST_DEVICE constexpr unsigned streamed_pitch(unsigned dim) { return dim | 1U; }
constexpr std::uint64_t attention_forward_floats(unsigned dim) {
  return 2ULL * kKept * dim + std::uint64_t{kStreamed} * streamed_pitch(dim) + kKept * kScorePitch +
         3ULL * kKept;
}
constexpr std::uint64_t attention_q_floats(unsigned dim) {
  return 3ULL * kKept * dim + std::uint64_t{kStreamed} * streamed_pitch(dim) +
         2ULL * kKept * kScorePitch + 2ULL * kKept;
}
constexpr std::uint64_t attention_kv_floats(unsigned dim) {
  return 4ULL * kKept * dim + std::uint64_t{kStreamed} * streamed_pitch(dim) +
         2ULL * kKept * kScorePitch;
}

/// Sets target[count][pitch] to rows of `source`, `stride` apart, and zeros beyond `valid` of them.
template <class Team, class T>
SPILLWAY_HOST_DEVICE void load_rows(const Team& team, float* target, unsigned pitch,
                                    const T* source, std::uint64_t stride, unsigned count,
                                    unsigned valid, unsigned dim) {
  team.each([&](unsigned lane) {
    for (unsigned row = lane / 32; row < count; row += Team::kLanes / 32) {
      for (unsigned d = lane % 32; d < dim; d += 32) {
        target[row * pitch + d] = row < valid ? widen(source[row * stride + d]) : 0.0F;
      }
    }
  });
}

/// Sets scores[r][c] = kept[r] . streamed[c].
template <class Team>
SPILLWAY_HOST_DEVICE void multiply_rows(const Team& team, const float* kept, const float* streamed,
                                        float* scores, unsigned dim) {
  static_assert(Team::kLanes == kAttentionLanes);
  const unsigned pitch = streamed_pitch(dim);
  team.each([&](unsigned lane) {
    const unsigned column = lane % kStreamed;
    const unsigned first = lane / kStreamed * kKeptPerLane;
    float sum[kKeptPerLane] = {};
    for (unsigned d = 0; d < dim; ++d) {
      const float x = streamed[column * pitch + d];
      for (unsigned r = 0; r < kKeptPerLane; ++r) {
        sum[r] = std::fma(kept[(first + r) * dim + d], x, sum[r]);
      }
    }
    for (unsigned r = 0; r < kKeptPerLane; ++r) scores[(first + r) * kScorePitch + column] = sum[r];
  });
}

/// Sets sums[r] = factor[r] * sums[r] + sum over c of weights[r][c] * streamed[c]. factor null: 1.
template <class Team>
SPILLWAY_HOST_DEVICE void add_rows(const Team& team, float* sums, const float* factor,
                                   const float* weights, const float* streamed, unsigned dim) {
  const unsigned pitch = streamed_pitch(dim);
  team.each([&](unsigned lane) {
    for (unsigned d = lane; d < dim; d += Team::kLanes) {
      float sum[kKept];
      for (unsigned r = 0; r < kKept; ++r) {
        sum[r] = sums[r * dim + d] * (factor != nullptr ? factor[r] : 1.0F);
      }
      for (unsigned c = 0; c < kStreamed; ++c) {
        const float x = streamed[c * pitch + d];
        for (unsigned r = 0; r < kKept; ++r) {
          sum[r] = std::fma(weights[r * kScorePitch + c], x, sum[r]);
        }
      }
      for (unsigned r = 0; r < kKept; ++r) sums[r * dim + d] = sum[r];
    }
  });
}

template <class Team>
SPILLWAY_HOST_DEVICE void clear(const Team& team, float* values, unsigned count) {
  team.each([&](unsigned lane) {
    for (unsigned i = lane; i < count; i += Team::kLanes) values[i] = 0;
  });
}

/// Stores `rows` rows of sums, times factor[r] if there is one, as elements.
template <class Team, class T>
SPILLWAY_HOST_DEVICE void store_rows(const Team& team, T* target, std::uint64_t stride,
                                     const float* sums, const float* factor, unsigned rows,
                                     unsigned dim) {
  team.each([&](unsigned lane) {
    for (unsigned row = lane / 32; row < rows; row += Team::kLanes / 32) {
      for (unsigned d = lane % 32; d < dim; d += 32) {
        const float x = sums[row * dim + d];
        narrow(target + row * stride + d, factor != nullptr ? x * factor[row] : x);
      }
    }
  });
}

}  // namespace spillway::model::cuda::bodies
