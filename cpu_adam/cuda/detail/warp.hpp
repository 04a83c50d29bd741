// Warps: 32 threads of a device that work on one quantization block or one leaf together. As
// runtime/base/team.hpp, but for teams whose lanes keep their values in registers: no shared memory
// and no barrier of the thread block, so several warps of a block work each on its own.
//
//   typename Warp::template Lanes<float> values;            // one of each lane
//   warp.each([&](unsigned lane) { values[lane] = ...; });
//   const float total = warp.reduce(values, add);           // the same order on host and device
#pragma once

#include "runtime/base/host_device.hpp"

namespace spillway::cpu_adam::cuda::detail {

inline constexpr unsigned kWarpLanes = 32;

/// One lane after the other.
struct SerialWarp {
  template <class T>
  struct Lanes {
    T values[kWarpLanes];
    SPILLWAY_HOST_DEVICE T& operator[](unsigned lane) { return values[lane]; }
  };

  template <class Body>
  SPILLWAY_HOST_DEVICE void each(Body body) const {
    for (unsigned lane = 0; lane < kWarpLanes; ++lane) body(lane);
  }

  /// Lanes j and j + 16 are combined, then j and j + 8, and so on to one: what every lane gets.
  template <class T, class Combine>
  SPILLWAY_HOST_DEVICE T reduce(Lanes<T>& lanes, Combine combine) const {
    for (unsigned half = kWarpLanes / 2; half > 0; half /= 2) {
      for (unsigned lane = 0; lane < half; ++lane) {
        lanes[lane] = combine(lanes[lane], lanes[lane + half]);
      }
    }
    return lanes[0];
  }
};

#ifdef __CUDACC__

/// The warp of the calling thread, all of it active, in blocks of one dimension.
struct DeviceWarp {
  template <class T>
  struct Lanes {
    T value;
    __device__ T& operator[](unsigned /*lane*/) { return value; }
  };

  template <class Body>
  __device__ void each(Body body) const {
    body(threadIdx.x % kWarpLanes);
    __syncwarp();
  }

  template <class T, class Combine>
  __device__ T reduce(Lanes<T>& lanes, Combine combine) const {
    T value = lanes.value;
    for (unsigned half = kWarpLanes / 2; half > 0; half /= 2) {
      value = combine(value, __shfl_down_sync(~0U, value, half));
    }
    return __shfl_sync(~0U, value, 0);
  }
};

#endif  // __CUDACC__

}  // namespace spillway::cpu_adam::cuda::detail
