// Functions that run on the host and, where nvcc compiles them, on the device too.
#pragma once

#ifdef __CUDACC__
#define SPILLWAY_HOST_DEVICE __host__ __device__
#else
#define SPILLWAY_HOST_DEVICE
#endif
