// The kernels compiled for AVX2. Empty on other processors.
#ifdef __x86_64__
#include <immintrin.h>

#include "runtime/model/host/kernels.hpp"
#include "runtime/model/host/target.hpp"

#define SPILLWAY_SIMD avx2
#define SPILLWAY_SIMD_HEADER "runtime/model/host/simd_avx2.hpp"
SPILLWAY_TARGET_BEGIN("avx2,fma,f16c")
#include "runtime/model/host/kernel_table.hpp"
SPILLWAY_TARGET_END

namespace spillway::model::host {
namespace {
bool supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
}  // namespace

const Kernels kAvx2Kernels = {"avx2", supported, avx2::make_table<float>(),
                              avx2::make_table<Bf16>(), avx2::make_table<Fp16>()};

}  // namespace spillway::model::host
#endif
