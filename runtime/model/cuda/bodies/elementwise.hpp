// Elementwise operations on flat arrays, and a bias added to rows.
#pragma once

#include "runtime/model/cuda/bodies/runner.hpp"

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

template <unsigned N, class T>
struct Add {
  const T* a;
  const T* b;
  T* out;
  std::uint64_t count;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    visit_item<N>(item, count, [&](auto pack, std::uint64_t i) {
      constexpr unsigned kN = decltype(pack)::value;
      store(out + i, load<kN>(a + i) + load<kN>(b + i));
    });
  }
};

/// Item: a pack of a row.
template <unsigned N, class T>
struct AddBias {
  const T* input;
  const T* bias;
  T* out;
  std::uint64_t columns;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    store(out + item * N, load<N>(input + item * N) + load<N>(bias + item * N % columns));
  }
};

/// Both conversions: to nearest even, or exact.
template <unsigned N, class From, class To>
struct Convert {
  const From* input;
  To* out;
  std::uint64_t count;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    visit_item<N>(item, count, [&](auto pack, std::uint64_t i) {
      store(out + i, load<decltype(pack)::value>(input + i));
    });
  }
};

template <unsigned N, class T>
struct Accumulate {
  const T* input;
  float* out;
  std::uint64_t count;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    visit_item<N>(item, count, [&](auto pack, std::uint64_t i) {
      constexpr unsigned kN = decltype(pack)::value;
      store(out + i, load<kN>(out + i) + load<kN>(input + i));
    });
  }
};

template <class Runner>
void add(Runner& runner, DType compute, ConstTensor a, ConstTensor b, Tensor out) {
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const std::uint64_t count = out.size() / sizeof(T);
    with_pack(aligned(a.address(), b.address(), out.address()), [&](auto pack) {
      constexpr unsigned kN = decltype(pack)::value;
      runner.items(Add<kN, T>{elements<T>(a), elements<T>(b), elements<T>(out), count},
                   item_count<kN>(count));
    });
  });
}

template <class Runner>
void add_bias(Runner& runner, DType compute, std::uint64_t rows, ConstTensor input,
              ConstTensor bias, Tensor out) {
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const std::uint64_t columns = bias.size() / sizeof(T);
    const bool packed =
        aligned(input.address(), bias.address(), out.address()) && whole_packs(columns);
    with_pack(packed, [&](auto pack) {
      constexpr unsigned kN = decltype(pack)::value;
      runner.items(AddBias<kN, T>{elements<T>(input), elements<T>(bias), elements<T>(out), columns},
                   rows * (columns / kN));
    });
  });
}

template <class Runner, class From, class To>
void convert(Runner& runner, const From* input, To* out, std::uint64_t count) {
  with_pack(aligned(input, out), [&](auto pack) {
    constexpr unsigned kN = decltype(pack)::value;
    runner.items(Convert<kN, From, To>{input, out, count}, item_count<kN>(count));
  });
}

template <class Runner>
void narrow(Runner& runner, DType compute, offload::DeviceSpan<const float> input, Tensor out) {
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    convert(runner, input.address(), elements<T>(out), out.size() / sizeof(T));
  });
}

template <class Runner>
void widen(Runner& runner, DType compute, ConstTensor input, offload::DeviceSpan<float> out) {
  with_element(compute, [&](auto element) {
    convert(runner, elements<decltype(element)>(input), out.address(), out.size());
  });
}

template <class Runner>
void accumulate(Runner& runner, DType compute, ConstTensor input, Gradient out) {
  if (out.first) {
    widen(runner, compute, input, out.values);
    return;
  }
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const std::uint64_t count = out.values.size();
    with_pack(aligned(input.address(), out.values.address()), [&](auto pack) {
      constexpr unsigned kN = decltype(pack)::value;
      runner.items(Accumulate<kN, T>{elements<T>(input), out.values.address(), count},
                   item_count<kN>(count));
    });
  });
}

}  // namespace spillway::model::cuda::bodies
