// Teams: the threads of a device that work on one row together, written so that the same code runs
// on the host, one lane after the other. A body is a function template over the team; what its
// lanes share lies in an array that the caller brings: shared memory on the device.
//
//   team.each([&](unsigned lane) { partial[lane] = ...; });   // ends with a barrier
//   const float total = team.sum(partial);                    // the same order, so the same bits
//
// The lanes of a warp can keep their values in registers instead, and need no barrier of the thread
// block, so several warps of a block work each on its own:
//
//   typename Warp::template Lanes<float> values;              // one of each lane
//   warp.each([&](unsigned lane) { values[lane] = ...; });
//   const float total = warp.reduce(values, add);
#pragma once

#include "runtime/base/host_device.hpp"

namespace spillway {

inline constexpr unsigned kWarpLanes = 32;

/// Runs `Lanes`, a power of two of at least 32, one after the other.
template <unsigned Lanes>
struct SerialTeam {
  static constexpr unsigned kLanes = Lanes;

  template <class Body>
  SPILLWAY_HOST_DEVICE void each(Body body) const {
    for (unsigned lane = 0; lane < Lanes; ++lane) body(lane);
  }

  /// Returns combine(...combine(values[0], values[Lanes / 2])...) by halves; `values` is
  /// overwritten. On every lane.
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

/// Runs the lanes of a warp, one after the other.
struct SerialWarp : SerialTeam<kWarpLanes> {
  template <class T>
  struct Lanes {
    T values[kWarpLanes];
    SPILLWAY_HOST_DEVICE T& operator[](unsigned lane) { return values[lane]; }
  };

  using SerialTeam::reduce;
  template <class T, class Combine>
  SPILLWAY_HOST_DEVICE T reduce(Lanes<T>& lanes, Combine combine) const {
    return reduce(lanes.values, combine);
  }
};

#ifdef __CUDACC__

/// Warp of the calling thread, all of it active, in blocks of one dimension. It combines as
/// SerialWarp, bit for bit.
struct WarpTeam {
  static constexpr unsigned kLanes = kWarpLanes;
  template <class T>
  struct Lanes {
    T value;
    __device__ T& operator[](unsigned /*lane*/) { return value; }
  };

  template <class Body>
  __device__ void each(Body body) const {
    body(threadIdx.x % kLanes);
    __syncwarp();
  }

  /// Combines lanes j and j + 16, then j and j + 8, and so on to one value, which every lane gets.
  template <class T, class Combine>
  __device__ T reduce(Lanes<T>& lanes, Combine combine) const {
    T value = lanes.value;
    for (unsigned half = kLanes / 2; half > 0; half /= 2) {
      value = combine(value, __shfl_down_sync(~0U, value, half));
    }
    return __shfl_sync(~0U, value, 0);
  }
  template <class T, class Combine>
  __device__ T reduce(T* values, Combine combine) const {
    Lanes<T> lanes{values[threadIdx.x % kLanes]};
    const T value = reduce(lanes, combine);
    __syncwarp();  // before anyone reuses `values`
    return value;
  }
  template <class T>
  __device__ T sum(T* values) const {
    return reduce(values, [](T a, T b) { return a + b; });
  }
};

/// Threads of a one-dimensional thread block of `Lanes`.
template <unsigned Lanes>
struct DeviceTeam {
  static constexpr unsigned kLanes = Lanes;
  static_assert(Lanes >= 32 && (Lanes & (Lanes - 1)) == 0);

  template <class Body>
  __device__ void each(Body body) const {
    body(threadIdx.x);
    __syncthreads();
  }

  /// Returns what SerialTeam::reduce does, bit for bit: halves above a warp in shared memory,
  /// others in the warp.
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
