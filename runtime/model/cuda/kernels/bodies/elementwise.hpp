// Elementwise operations on flat arrays.
#pragma once

#include "runtime/model/cuda/kernels/bodies/runner.hpp"

namespace spillway::model::cuda::bodies {

/// Visits elements [item * N, item * N + N) below `count` as a pack where it is whole, else one by
/// one: visit(PackSize<N>, first element).
template <unsigned N, class Visit>
SPILLWAY_HOST_DEVICE void visit_item(std::uint64_t item, std::uint64_t count, Visit visit) {
  const std::uint64_t first = item * N;
  if (first + N <= count) {
    visit(PackSize<N>{}, first);
    return;
  }
  for (std::uint64_t i = first; i < count; ++i) visit(PackSize<1>{}, i);
}
template <unsigned N>
constexpr std::uint64_t item_count(std::uint64_t count) {
  return (count + N - 1) / N;
}

/// Rounds fp32 to an element, to nearest even.
template <unsigned N, class T>
struct Narrow {
  const float* input;
  T* out;
  std::uint64_t count;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    visit_item<N>(item, count, [&](auto pack, std::uint64_t i) {
      store(out + i, load<decltype(pack)::value>(input + i));
    });
  }
};

template <class Runner>
void run(Runner& runner, DType /*compute*/, const FillZeroOp& op) {
  if (!op.values.empty()) runner.zero(op.values.address(), op.values.size());
}

template <class Runner>
void run(Runner& runner, DType compute, const RoundSumsOp& op) {
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const float* sums = op.sums.address();
    T* out = elements<T>(op.out);
    const std::uint64_t count = op.out.size() / sizeof(T);
    with_pack(aligned(sums, out), [&](auto pack) {
      constexpr unsigned kN = decltype(pack)::value;
      runner.items(Narrow<kN, T>{sums, out, count}, item_count<kN>(count));
    });
  });
}

}  // namespace spillway::model::cuda::bodies
