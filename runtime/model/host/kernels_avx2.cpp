// The kernels compiled for AVX2. Empty on other processors.
#ifdef __x86_64__
#include "runtime/base/simd/avx2.hpp"
#include "runtime/base/simd/processor.hpp"
#include "runtime/model/host/kernels.hpp"

#define SPILLWAY_SIMD avx2
SPILLWAY_TARGET_BEGIN(SPILLWAY_AVX2)
#include "runtime/model/host/kernel_table.hpp"
SPILLWAY_TARGET_END

namespace spillway::model::host {

const Kernels kAvx2Kernels = {"avx2", simd::has_avx2, avx2::make_table<float>(),
                              avx2::make_table<Bf16>(), avx2::make_table<Fp16>()};

}  // namespace spillway::model::host
#endif
