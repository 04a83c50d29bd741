// Causal grouped-query attention, forward and backward, as one team computes a tile of it. Nothing
// is added by two teams, so every sum has one order; scores are kept for one streamed tile only.
//
// Forward: softmax with a running maximum. Backward, with p the probabilities, and per row
// delta = sum(out * out_gradient):  d_score = p * (out_gradient . v - delta) * scale.
#pragma once

#include "runtime/model/cuda/kernels/bodies/attention_tile.hpp"

namespace spillway::model::cuda::bodies {

/// A running softmax of kKept rows: scores become exp(scale * score - largest), masked ones 0.
struct Softmax {
  float *scores, *largest, *total, *factor;

  /// Adds a tile. `first`, `key`: positions of the first kept query and the first streamed key.
  template <class Team>
  SPILLWAY_HOST_DEVICE void absorb(const Team& team, const AttentionSize& size, unsigned first,
                                   unsigned key) const {
    team.each([&](unsigned lane) {
      if (lane >= kKept) return;
      // The first tile holds key 0, which every query sees: the maximum is finite from then on.
      const unsigned seen = visible(size, first + lane, key);
      float top = largest[lane];
      for (unsigned c = 0; c < seen; ++c) {
        top = std::fmax(top, scores[lane * kScorePitch + c] * size.scale);
      }
      factor[lane] = std::exp(largest[lane] - top);
      largest[lane] = top;
    });
    team.each([&](unsigned lane) {
      for (unsigned i = lane; i < kKept * kStreamed; i += Team::kLanes) {
        const unsigned row = i / kStreamed;
        const unsigned column = i % kStreamed;
        float& score = scores[row * kScorePitch + column];
        const bool sees = column < visible(size, first + row, key);
        score = sees ? std::exp(score * size.scale - largest[row]) : 0.0F;
      }
    });
    team.each([&](unsigned lane) {
      if (lane >= kKept) return;
      float sum = total[lane] * factor[lane];
      for (unsigned c = 0; c < kStreamed; ++c) sum += scores[lane * kScorePitch + c];
      total[lane] = sum;
    });
  }

  /// Number of keys of the tile from `key` on that the query at `position` sees.
  SPILLWAY_HOST_DEVICE static unsigned visible(const AttentionSize& size, unsigned position,
                                               unsigned key) {
    const unsigned last = position < size.sequence ? position : size.sequence - 1;
    if (last < key) return 0;
    return last - key + 1 < kStreamed ? last - key + 1 : kStreamed;
  }
};

/// Makes out and log_sum of the queries of a tile over batch, query heads and positions.
template <class T, class Team>
SPILLWAY_HOST_DEVICE void attend(const Team& team, const AttentionForwardCall<T>& call,
                                 std::uint64_t index, float* shared) {
  const AttentionSize& size = call.size;
  const AttentionTile at(size, size.heads, index);
  const unsigned dim = size.head_dim;
  const std::uint32_t kv = at.head / (size.heads / size.kv_heads);
  float* q = shared;
  float* out = q + kKept * dim;
  float* streamed = out + kKept * dim;
  float* scores = streamed + kStreamed * streamed_pitch(dim);
  float* largest = scores + kKept * kScorePitch;
  const Softmax softmax{scores, largest, largest + kKept, largest + 2 * kKept};
  load_rows(team, q, dim, call.q.row(size, at.batch, at.head, at.first), call.q.stride, kKept,
            at.rows, dim);
  clear(team, out, kKept * dim);
  team.each([&](unsigned lane) {
    if (lane >= kKept) return;
    softmax.largest[lane] = -INFINITY;
    softmax.total[lane] = 0;
  });
  for (unsigned key = 0; key < at.first + at.rows; key += kStreamed) {
    const unsigned valid = size.sequence - key < kStreamed ? size.sequence - key : kStreamed;
    const unsigned pitch = streamed_pitch(dim);
    load_rows(team, streamed, pitch, call.k.row(size, at.batch, kv, key), call.k.stride, kStreamed,
              valid, dim);
    multiply_rows(team, q, streamed, scores, dim);
    softmax.absorb(team, size, at.first, key);
    load_rows(team, streamed, pitch, call.v.row(size, at.batch, kv, key), call.v.stride, kStreamed,
              valid, dim);
    add_rows(team, out, softmax.factor, scores, streamed, dim);
  }
  team.each([&](unsigned lane) {
    if (lane >= kKept) return;
    softmax.factor[lane] = 1.0F / softmax.total[lane];
    if (lane >= at.rows) return;
    const std::uint64_t row = (std::uint64_t{at.batch} * size.heads + at.head) * size.sequence;
    call.log_sum[row + at.first + lane] = softmax.largest[lane] + std::log(softmax.total[lane]);
  });
  store_rows(team, call.out.row(size, at.batch, at.head, at.first), call.out.stride, out,
             softmax.factor, at.rows, dim);
}

/// Turns a score to a probability and d_probability to the score's gradient, for one pair.
SPILLWAY_HOST_DEVICE inline void softmax_gradient(bool sees, float scale, float log_sum,
                                                  float delta, float& score, float& gradient) {
  const float p = sees ? std::exp(std::fma(score, scale, -log_sum)) : 0.0F;
  score = p;
  gradient = sees ? p * (gradient - delta) * scale : 0.0F;
}

/// Makes q_gradient and delta of the queries of a tile over batch, query heads and positions.
template <class T, class Team>
SPILLWAY_HOST_DEVICE void attend_backward_q(const Team& team, const AttentionBackwardCall<T>& call,
                                            std::uint64_t index, float* shared) {
  const AttentionSize& size = call.size;
  const AttentionTile at(size, size.heads, index);
  const unsigned dim = size.head_dim;
  const unsigned pitch = streamed_pitch(dim);
  const std::uint32_t kv = at.head / (size.heads / size.kv_heads);
  const std::uint64_t row = (std::uint64_t{at.batch} * size.heads + at.head) * size.sequence;
  float* q = shared;
  float* d_out = q + kKept * dim;
  float* d_q = d_out + kKept * dim;
  float* streamed = d_q + kKept * dim;
  float* scores = streamed + kStreamed * pitch;
  float* gradients = scores + kKept * kScorePitch;
  float* log_sum = gradients + kKept * kScorePitch;
  float* delta = log_sum + kKept;
  const auto keep = [&](float* target, const Heads<const T>& source) {
    load_rows(team, target, dim, source.row(size, at.batch, at.head, at.first), source.stride,
              kKept, at.rows, dim);
  };
  keep(q, call.out);  // for delta
  keep(d_out, call.out_gradient);
  team.each([&](unsigned lane) {
    if (lane >= kKept) return;
    float sum = 0;
    for (unsigned d = 0; d < dim; ++d)
      sum = std::fma(q[lane * dim + d], d_out[lane * dim + d], sum);
    delta[lane] = sum;
    log_sum[lane] = lane < at.rows ? call.log_sum[row + at.first + lane] : 0.0F;
    if (lane < at.rows) call.delta[row + at.first + lane] = sum;
  });
  keep(q, call.q);
  clear(team, d_q, kKept * dim);
  for (unsigned key = 0; key < at.first + at.rows; key += kStreamed) {
    const unsigned valid = size.sequence - key < kStreamed ? size.sequence - key : kStreamed;
    load_rows(team, streamed, pitch, call.v.row(size, at.batch, kv, key), call.v.stride, kStreamed,
              valid, dim);
    multiply_rows(team, d_out, streamed, gradients, dim);
    load_rows(team, streamed, pitch, call.k.row(size, at.batch, kv, key), call.k.stride, kStreamed,
              valid, dim);
    multiply_rows(team, q, streamed, scores, dim);
    team.each([&](unsigned lane) {
      for (unsigned i = lane; i < kKept * kStreamed; i += Team::kLanes) {
        const unsigned r = i / kStreamed;
        const unsigned c = i % kStreamed;
        softmax_gradient(r < at.rows && key + c <= at.first + r, size.scale, log_sum[r], delta[r],
                         scores[r * kScorePitch + c], gradients[r * kScorePitch + c]);
      }
    });
    add_rows(team, d_q, nullptr, gradients, streamed, dim);
  }
  store_rows(team, call.q_gradient.row(size, at.batch, at.head, at.first), call.q_gradient.stride,
             d_q, nullptr, at.rows, dim);
}

/// The rows of one team of `attend_backward_kv`, and what it sums for them.
struct KvTile {
  float *k, *v, *d_k, *d_v, *streamed, *scores, *gradients;

  SPILLWAY_HOST_DEVICE KvTile(float* shared, unsigned dim)
      : k(shared),
        v(k + kKept * dim),
        d_k(v + kKept * dim),
        d_v(d_k + kKept * dim),
        streamed(d_v + kKept * dim),
        scores(streamed + kStreamed * streamed_pitch(dim)),
        gradients(scores + kKept * kScorePitch) {}
};

/// Adds what the queries of `head` give to the keys of a tile.
template <class T, class Team>
SPILLWAY_HOST_DEVICE void add_queries(const Team& team, const AttentionBackwardCall<T>& call,
                                      const AttentionTile& at, std::uint32_t head,
                                      const KvTile& tile) {
  const AttentionSize& size = call.size;
  const unsigned dim = size.head_dim;
  const std::uint64_t row = (std::uint64_t{at.batch} * size.heads + head) * size.sequence;
  // No query before the first key sees any of them.
  for (unsigned query = at.first; query < size.sequence; query += kStreamed) {
    const unsigned valid = size.sequence - query < kStreamed ? size.sequence - query : kStreamed;
    const auto stream = [&](const Heads<const T>& source) {
      load_rows(team, tile.streamed, streamed_pitch(dim), source.row(size, at.batch, head, query),
                source.stride, kStreamed, valid, dim);
    };
    stream(call.q);
    multiply_rows(team, tile.k, tile.streamed, tile.scores, dim);
    stream(call.out_gradient);
    multiply_rows(team, tile.v, tile.streamed, tile.gradients, dim);
    team.each([&](unsigned lane) {
      for (unsigned i = lane; i < kKept * kStreamed; i += Team::kLanes) {
        const unsigned r = i / kStreamed;
        const unsigned c = i % kStreamed;
        const bool sees = r < at.rows && c < valid && at.first + r <= query + c;
        softmax_gradient(sees, size.scale, sees ? call.log_sum[row + query + c] : 0.0F,
                         sees ? call.delta[row + query + c] : 0.0F,
                         tile.scores[r * kScorePitch + c], tile.gradients[r * kScorePitch + c]);
      }
    });
    add_rows(team, tile.d_v, nullptr, tile.scores, tile.streamed, dim);
    stream(call.q);
    add_rows(team, tile.d_k, nullptr, tile.gradients, tile.streamed, dim);
  }
}

/// Makes k_gradient and v_gradient of the keys of a tile over batch, key/value heads and positions,
/// query heads of the group in order. It follows `attend_backward_q` of all tiles: it reads delta.
template <class T, class Team>
SPILLWAY_HOST_DEVICE void attend_backward_kv(const Team& team, const AttentionBackwardCall<T>& call,
                                             std::uint64_t index, float* shared) {
  const AttentionSize& size = call.size;
  const AttentionTile at(size, size.kv_heads, index);
  const unsigned dim = size.head_dim;
  const std::uint32_t group = size.heads / size.kv_heads;
  const KvTile tile(shared, dim);
  load_rows(team, tile.k, dim, call.k.row(size, at.batch, at.head, at.first), call.k.stride, kKept,
            at.rows, dim);
  load_rows(team, tile.v, dim, call.v.row(size, at.batch, at.head, at.first), call.v.stride, kKept,
            at.rows, dim);
  clear(team, tile.d_k, 2 * kKept * dim);  // and d_v, which follows
  for (std::uint32_t g = 0; g < group; ++g) add_queries(team, call, at, at.head * group + g, tile);
  store_rows(team, call.k_gradient.row(size, at.batch, at.head, at.first), call.k_gradient.stride,
             tile.d_k, nullptr, at.rows, dim);
  store_rows(team, call.v_gradient.row(size, at.batch, at.head, at.first), call.v_gradient.stride,
             tile.d_v, nullptr, at.rows, dim);
}

}  // namespace spillway::model::cuda::bodies
