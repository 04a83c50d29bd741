// Elementary functions on sixteen lanes. The kernel_*.hpp files are written once and compiled for
// each instruction set: kernels_<isa>.cpp includes its vectors, defines SPILLWAY_SIMD, the
// namespace of theirs and of its kernels, and includes the files for its target. No other file
// includes them.
#pragma once

#include "runtime/model/host/lanes.hpp"

#define SPILLWAY_LANE_FUNCTION inline

namespace spillway::model::host::SPILLWAY_SIMD {

inline F negative(F a) { return set(0) - a; }
inline F reciprocal(F a) { return set(1.0F) / a; }

#include "runtime/model/elementary.inl"

}  // namespace spillway::model::host::SPILLWAY_SIMD

#undef SPILLWAY_LANE_FUNCTION
