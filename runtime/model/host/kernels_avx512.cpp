// The kernels compiled for AVX512. Empty on other processors.
#ifdef __x86_64__
#include <immintrin.h>

#include "runtime/model/host/kernels.hpp"
#include "runtime/model/host/target.hpp"

#ifndef __clang__
// GCC 12 mistakes its own "undefined" registers in avx512fintrin.h for ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define SPILLWAY_SIMD avx512
#define SPILLWAY_SIMD_HEADER "runtime/model/host/simd_avx512.hpp"
SPILLWAY_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#include "runtime/model/host/kernel_table.hpp"
SPILLWAY_TARGET_END

namespace spillway::model::host {
namespace {
bool supported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("fma");
}
}  // namespace

const Kernels kAvx512Kernels = {"avx512", supported, avx512::make_table<float>(),
                                avx512::make_table<Bf16>(), avx512::make_table<Fp16>()};

}  // namespace spillway::model::host
#endif
