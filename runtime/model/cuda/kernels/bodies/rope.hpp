// Rotary position embedding in place: pairs (i, i + head_dim / 2) of each head turn by the angles
// of their token's position.
#pragma once

#include "runtime/model/cuda/kernels/bodies/runner.hpp"

namespace spillway::model::cuda::bodies {

/// An item is (token, part of the heads, pack of pairs): a part's heads share its loaded angles.
template <unsigned N, class T>
struct Rope {
  Rows<T> heads;
  std::uint64_t head_count, head_dim, sequence;
  const float* angles;
  float direction;  ///< 1 forward, -1 backward

  static constexpr std::uint64_t kHeads = 4;

  [[nodiscard]] SPILLWAY_HOST_DEVICE std::uint64_t parts() const {
    return (head_count + kHeads - 1) / kHeads;
  }
  [[nodiscard]] SPILLWAY_HOST_DEVICE std::uint64_t packs() const { return head_dim / 2 / N; }

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    const std::uint64_t i = item % packs() * N;
    const std::uint64_t part = item / packs() % parts();
    const std::uint64_t token = item / packs() / parts();
    const std::uint64_t half = head_dim / 2;
    const float* cosines = angles + token % sequence * head_dim;
    const Pack<N> c = load<N>(cosines + i);
    const Pack<N> raw = load<N>(cosines + half + i);
    const Pack<N> s = map<N>([&](unsigned j) { return raw.lane[j] * direction; });
    const std::uint64_t first = part * kHeads;
    const std::uint64_t last = first + kHeads < head_count ? first + kHeads : head_count;
    for (std::uint64_t head = first; head < last; ++head) {
      T* lower = heads.at(token, head, head_dim) + i;
      T* upper = lower + half;
      const Pack<N> a = load<N>(lower);
      const Pack<N> b = load<N>(upper);
      store(lower,
            map<N>([&](unsigned j) { return a.lane[j] * c.lane[j] - b.lane[j] * s.lane[j]; }));
      store(upper,
            map<N>([&](unsigned j) { return b.lane[j] * c.lane[j] + a.lane[j] * s.lane[j]; }));
    }
  }
};

template <class Runner>
void run(Runner& runner, DType compute, const RopeArguments& a) {
  SPILLWAY_ASSERT(a.head_dim % 2 == 0 && a.angles.size() == std::size_t{a.sequence} * a.head_dim);
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const Rows<T> heads = rows<T>(a.heads);
    const float* angles = a.angles.address();
    const bool packed = rows_packed(heads) && aligned(angles) && whole_packs(a.head_dim / 2);
    with_pack(packed, [&](auto pack) {
      const Rope<decltype(pack)::value, T> body{
          .heads = heads,
          .head_count = a.head_count,
          .head_dim = a.head_dim,
          .sequence = a.sequence,
          .angles = angles,
          .direction = a.direction == RopeDirection::forward ? 1.0F : -1.0F};
      runner.items(body, a.tokens * body.parts() * body.packs());
    });
  });
}

}  // namespace spillway::model::cuda::bodies
