// Activation functions and their gradients: gelu on flat arrays, silu on rows of gate | up.
#pragma once

#include "runtime/model/cuda/kernels/bodies/elementary.hpp"
#include "runtime/model/cuda/kernels/bodies/elementwise.hpp"

namespace spillway::model::cuda::bodies {

template <Activation Kind, unsigned N>
SPILLWAY_HOST_DEVICE inline void activate(const Pack<N>& x, Pack<N>& value, Pack<N>& slope) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (unsigned j = 0; j < N; ++j) {
    const Value v = activate<Kind>(x.lane[j]);
    value.lane[j] = v.value;
    slope.lane[j] = v.slope;
  }
}

template <unsigned N>
SPILLWAY_HOST_DEVICE inline Pack<N> operator*(const Pack<N>& a, const Pack<N>& b) {
  return map<N>([&](unsigned i) { return a.lane[i] * b.lane[i]; });
}

template <Activation Kind, unsigned N, class T>
struct FlatForward {
  const T* input;
  T* out;
  std::uint64_t count;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    visit_item<N>(item, count, [&](auto pack, std::uint64_t i) {
      Pack<decltype(pack)::value> value, slope;
      activate<Kind>(load<decltype(pack)::value>(input + i), value, slope);
      store(out + i, value);
    });
  }
};

/// `input_gradient` may be `out_gradient`: each element is read first.
template <Activation Kind, unsigned N, class T>
struct FlatBackward {
  const T* input;
  const T* out_gradient;
  T* input_gradient;
  T* out;
  std::uint64_t count;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    visit_item<N>(item, count, [&](auto pack, std::uint64_t i) {
      constexpr unsigned kN = decltype(pack)::value;
      Pack<kN> value, slope;
      activate<Kind>(load<kN>(input + i), value, slope);
      store(input_gradient + i, load<kN>(out_gradient + i) * slope);
      store(out + i, value);
    });
  }
};

/// An item is a pack of a row of `out`.
template <unsigned N, class T>
struct GatedForward {
  const T* input;
  T* out;
  std::uint64_t columns;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    const std::uint64_t row = item / (columns / N);
    const T* gate = input + row * columns + item * N;  // rows of input are twice as long
    Pack<N> value, slope;
    activate<Activation::silu>(load<N>(gate), value, slope);
    store(out + item * N, value * load<N>(gate + columns));
  }
};

template <unsigned N, class T>
struct GatedBackward {
  const T* input;
  const T* out_gradient;
  T* input_gradient;
  T* out;
  std::uint64_t columns;

  SPILLWAY_HOST_DEVICE void operator()(std::uint64_t item) const {
    const std::uint64_t row = item / (columns / N);
    const std::uint64_t at = row * columns + item * N;  // as in GatedForward
    Pack<N> value, slope;
    activate<Activation::silu>(load<N>(input + at), value, slope);
    const Pack<N> up = load<N>(input + at + columns);
    const Pack<N> d = load<N>(out_gradient + item * N);
    store(input_gradient + at, d * up * slope);
    store(input_gradient + at + columns, d * value);
    store(out + item * N, value * up);
  }
};

template <class Runner>
void run(Runner& runner, DType compute, const ActivationForwardOp& op) {
  const ActivationShape& shape = op.shape;
  const std::uint64_t count = shape.rows * shape.columns;
  const bool gated = shape.kind == Activation::silu;
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const T* x = elements<T>(op.input);
    T* y = elements<T>(op.out);
    with_pack(aligned(x, y) && (!gated || whole_packs(shape.columns)), [&](auto pack) {
      constexpr unsigned kN = decltype(pack)::value;
      if (gated) {
        runner.items(GatedForward<kN, T>{x, y, shape.columns}, count / kN);
      } else if (shape.kind == Activation::gelu_tanh) {
        runner.items(FlatForward<Activation::gelu_tanh, kN, T>{x, y, count}, item_count<kN>(count));
      } else {
        runner.items(FlatForward<Activation::gelu_erf, kN, T>{x, y, count}, item_count<kN>(count));
      }
    });
  });
}

template <class Runner>
void run(Runner& runner, DType compute, const ActivationBackwardOp& op) {
  const ActivationShape& shape = op.shape;
  const ActivationBackwardArguments& a = op.arguments;
  const std::uint64_t count = shape.rows * shape.columns;
  const bool gated = shape.kind == Activation::silu;
  with_element(compute, [&](auto element) {
    using T = decltype(element);
    const T* x = elements<T>(a.input);
    const T* dy = elements<T>(a.out_gradient);
    T* dx = elements<T>(a.input_gradient);
    T* y = elements<T>(a.out);
    with_pack(aligned(x, dy, dx, y) && (!gated || whole_packs(shape.columns)), [&](auto pack) {
      constexpr unsigned kN = decltype(pack)::value;
      const std::uint64_t items = item_count<kN>(count);
      if (gated) {
        runner.items(GatedBackward<kN, T>{x, dy, dx, y, shape.columns}, items);
      } else if (shape.kind == Activation::gelu_tanh) {
        runner.items(FlatBackward<Activation::gelu_tanh, kN, T>{x, dy, dx, y, count}, items);
      } else {
        runner.items(FlatBackward<Activation::gelu_erf, kN, T>{x, dy, dx, y, count}, items);
      }
    });
  });
}

}  // namespace spillway::model::cuda::bodies
