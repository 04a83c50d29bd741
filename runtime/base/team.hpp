// Teams: the threads of a device that work on one row together, written so that the same code runs
// on the host, one lane after the other. A body is a function template over the team; what its
// lanes share lies in an array that the caller brings: shared memory on the device.
//
//   team.each([&](unsigned lane) { partial[lane] = ...; });   // ends with a barrier
//   const float total = team.sum(partial);                    // the same order, so the same bits
#pragma once

#include "runtime/base/host_device.hpp"

namespace spillway {

/// `Lanes`, a power of two of at least 32, one after the other.
template <unsigned Lanes>
struct SerialTeam {
  static constexpr unsigned kLanes = Lanes;

  template <class Body>
  SPILLWAY_HOST_DEVICE void each(Body body) const {
    for (unsigned lane = 0; lane < Lanes; ++lane) body(lane);
  }

  /// combine(...combine(values[0], values[Lanes / 2])...) by halves; `values` is overwritten. On
  /// every lane.
  template <class T, class Combine>
  SPILLWAY_HOST_DEVICE T reduce(T* values, Combine combine) const {
    for (unsigned half = Lanes / 2; half > 0; half /= 2) {
      for (unsigned lane = 0; lane < half; ++lane) {
        values[lane] = combine(values[lane], values[lane + half]);
      }
    }
    return values[0];
  }

  template <class T>
  SPILLWAY_HOST_DEVICE T sum(T* values) const {
    return reduce(values, [](T a, T b) { return a + b; });
  }
};

#ifdef __CUDACC__

/// The threads of a one-dimensional thread block of `Lanes`.
template <unsigned Lanes>
struct DeviceTeam {
  static constexpr unsigned kLanes = Lanes;
  static_assert(Lanes >= 32 && (Lanes & (Lanes - 1)) == 0);

  template <class Body>
  __device__ void each(Body body) const {
    body(threadIdx.x);
    __syncthreads();
  }

  /// As SerialTeam::reduce, bit for bit: halves above a warp in shared memory, the others in it.
  template <class T, class Combine>
  __device__ T reduce(T* values, Combine combine) const {
    const unsigned lane = threadIdx.x;
    for (unsigned half = Lanes / 2; half >= 32; half /= 2) {
      if (lane < half) values[lane] = combine(values[lane], values[lane + half]);
      __syncthreads();
    }
    if (lane < 32) {
      T value = values[lane];
      for (unsigned half = 16; half > 0; half /= 2) {
        value = combine(value, __shfl_down_sync(~0U, value, half));
      }
      if (lane == 0) values[0] = value;
    }
    __syncthreads();
    const T result = values[0];
    __syncthreads();  // before anyone reuses `values`
    return result;
  }

  template <class T>
  __device__ T sum(T* values) const {
    return reduce(values, [](T a, T b) { return a + b; });
  }
};

#endif  // __CUDACC__

}  // namespace spillway
